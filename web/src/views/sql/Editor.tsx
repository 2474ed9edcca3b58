import { autocompletion, closeBrackets } from '@codemirror/autocomplete'
import { defaultKeymap, history, historyKeymap, indentWithTab } from '@codemirror/commands'
import { PostgreSQL, sql, type SQLNamespace } from '@codemirror/lang-sql'
import { HighlightStyle, syntaxHighlighting } from '@codemirror/language'
import { EditorState, Prec, StateEffect, StateField } from '@codemirror/state'
import { Decoration, EditorView, highlightActiveLine, keymap, lineNumbers, placeholder, type DecorationSet } from '@codemirror/view'
import { tags } from '@lezer/highlight'
import { useEffect, useRef } from 'react'
import type { SqlSchema } from '../../lib/screens'

interface Props {
  readonly text: string
  readonly schema: SqlSchema | undefined
  /** Where a refusal points. */
  readonly problem: { readonly position: number } | null
  readonly onText: (text: string) => void
  readonly onRun: () => void
}

const theme = EditorView.theme({
  '&': { height: '100%', backgroundColor: 'var(--bg1)', color: 'var(--text1)', fontSize: '13px' },
  '.cm-scroller': { fontFamily: 'var(--mono)', lineHeight: '20px', overflow: 'auto' },
  '.cm-content': { caretColor: 'var(--text1)', padding: '8px 0' },
  '.cm-gutters': { backgroundColor: 'var(--bg1)', color: 'var(--text3)', border: 'none' },
  '.cm-activeLine, .cm-activeLineGutter': { backgroundColor: 'color-mix(in srgb, var(--bg3) 40%, transparent)' },
  '&.cm-focused': { outline: '2px solid var(--accent)', outlineOffset: '-2px' },
  '.cm-selectionBackground, &.cm-focused .cm-selectionBackground': { backgroundColor: 'color-mix(in srgb, var(--accent) 28%, transparent) !important' },
  '.cm-cursor': { borderLeftColor: 'var(--text1)' },
  '.cm-tooltip': { backgroundColor: 'var(--bg2)', border: '1px solid var(--line-strong)', borderRadius: '4px', color: 'var(--text1)' },
  '.cm-tooltip-autocomplete ul li[aria-selected]': { backgroundColor: 'var(--accent)', color: 'var(--on-accent)' },
  '.cm-completionDetail': { color: 'var(--text3)', fontStyle: 'normal', marginLeft: '12px' },
  '.cm-tooltip-autocomplete ul li[aria-selected] .cm-completionDetail': { color: 'var(--on-accent)' },
  '.cm-completionInfo': { maxWidth: '320px', fontFamily: 'var(--sans)', fontSize: '12px', lineHeight: '16px', padding: '6px 8px' },
  '.cm-refused': { textDecoration: 'underline wavy var(--bad)' },
  '.cm-placeholder': { color: 'var(--text3)' },
})

const colors = HighlightStyle.define([
  { tag: tags.keyword, color: 'var(--accent)' },
  { tag: [tags.string, tags.special(tags.string)], color: 'var(--good)' },
  { tag: [tags.number, tags.bool, tags.null], color: 'var(--warn)' },
  { tag: tags.comment, color: 'var(--text3)' },
])

const refuse = StateEffect.define<{ readonly from: number; readonly to: number } | null>()

/** What a refusal points at, until the text is changed. */
const refused = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update: (marks, change) => {
    for (const effect of change.effects) {
      if (effect.is(refuse)) return effect.value === null ? Decoration.none : Decoration.set([Decoration.mark({ class: 'cm-refused' }).range(effect.value.from, effect.value.to)])
    }
    return change.docChanged ? Decoration.none : marks
  },
  provide: (field) => EditorView.decorations.from(field),
})

/** The page's policy takes no style that is written into it: in a shadow root the editor adopts its own instead. */
export function Editor({ text, schema, problem, onText, onRun }: Props) {
  const host = useRef<HTMLDivElement>(null)
  const view = useRef<EditorView | null>(null)
  const latest = useRef({ text, onText, onRun })
  useEffect(() => {
    latest.current = { text, onText, onRun }
  })
  useEffect(() => {
    const element = host.current
    if (element === null) return
    const root = element.shadowRoot ?? element.attachShadow({ mode: 'open' })
    const place = document.createElement('div')
    place.style.height = '100%'
    root.replaceChildren(place)
    const editor = new EditorView({
      parent: place,
      root,
      state: EditorState.create({
        doc: latest.current.text,
        extensions: [
          Prec.highest(
            keymap.of([
              {
                key: 'Mod-Enter',
                run: () => {
                  latest.current.onRun()
                  return true
                },
              },
            ]),
          ),
          lineNumbers(),
          history(),
          highlightActiveLine(),
          closeBrackets(),
          autocompletion({ icons: false }),
          keymap.of([...defaultKeymap, ...historyKeymap, indentWithTab]),
          sql({ dialect: PostgreSQL, schema: namespaceOf(schema), upperCaseKeywords: false }),
          syntaxHighlighting(colors),
          refused,
          EditorView.lineWrapping,
          EditorView.contentAttributes.of({ 'aria-label': 'SQL statement', spellcheck: 'false' }),
          placeholder('select …'),
          theme,
          EditorView.updateListener.of((update) => {
            if (update.docChanged) latest.current.onText(update.state.doc.toString())
          }),
        ],
      }),
    })
    view.current = editor
    return () => {
      view.current = null
      editor.destroy()
    }
  }, [schema])
  useEffect(() => {
    const editor = view.current
    if (editor !== null && editor.state.doc.toString() !== text) {
      editor.dispatch({ changes: { from: 0, to: editor.state.doc.length, insert: text } })
    }
  }, [text])
  useEffect(() => {
    const editor = view.current
    if (editor === null) return
    const length = editor.state.doc.length
    const from = Math.min(problem?.position ?? 0, length)
    const word = /^\S+/.exec(editor.state.sliceDoc(from, length))?.[0].length ?? 0
    const to = Math.min(length, from + Math.max(1, word))
    editor.dispatch({ effects: refuse.of(problem === null || to <= from ? null : { from, to }) })
  }, [problem, schema])
  return <div ref={host} data-testid="editor" style={{ height: '100%' }} onKeyDown={keepKeys} />
}

/** Typing here is no command of the page, save for those with Control. */
function keepKeys(event: React.KeyboardEvent): void {
  if (!event.ctrlKey && !event.metaKey) event.stopPropagation()
}

function namespaceOf(schema: SqlSchema | undefined): SQLNamespace {
  return Object.fromEntries(
    (schema?.tables ?? []).map((table) => [
      table.name,
      table.columns.map(({ name, type, about }) => ({ label: name, type: 'property', detail: type.toLowerCase(), ...(about === null ? {} : { info: about }) })),
    ]),
  )
}
