import { useMemo } from 'react'
import type { Command, ConfigSaid, ToTimeline } from '../../canvas/protocol'
import type { Binding } from '../../lib/keys'
import { useKeys } from '../useKeys'

const COMMANDS: readonly (readonly [keys: string, command: Command, words: string])[] = [
  ['w', 'zoom-in', 'Zoom in at the pointer'],
  ['s', 'zoom-out', 'Zoom out'],
  ['a', 'left', 'Pan left'],
  ['d', 'right', 'Pan right'],
  ['shift+a', 'page-left', 'A page left'],
  ['shift+d', 'page-right', 'A page right'],
  ['ArrowLeft', 'previous', 'Previous launch of the lane'],
  [',', 'previous', 'Previous launch of the lane'],
  ['ArrowRight', 'next', 'Next launch of the lane'],
  ['.', 'next', 'Next launch of the lane'],
  ['ArrowUp', 'lane-above', 'Lane above'],
  ['ArrowDown', 'lane-below', 'Lane below'],
  ['f', 'focus', 'Centre the selection; again: fit it'],
  ['shift+f', 'fit-all', 'Fit everything; again: with the recording'],
  ['Backspace', 'back', 'Where the camera was before'],
  ['j', 'previous-step', 'Previous step'],
  ['n', 'next-step', 'Next step'],
  ['r', 'selection-to-area', 'Selection becomes the area'],
  ['l', 'loop', 'Loop the area or step; again: off'],
  ['m', 'flag', 'Place a flag'],
  ['Space', 'play', 'Play or pause simulated time'],
  ['[', 'slower', 'Slower'],
  [']', 'faster', 'Faster'],
  ['End', 'follow', 'Follow the live edge'],
  ['c', 'next-colour', 'Next colour mode'],
  ['x', 'collapse', 'Collapse or open the config'],
  ['p', 'pin', 'Pin the lane above all others; again: let it go'],
  ['Escape', 'clear', 'Clear selection and area'],
]

/** The timeline's keys; every one is a command of the palette too. */
export function useTimelineKeys(send: (said: ToTimeline) => void, configs: readonly ConfigSaid[], onTwin: () => void): void {
  useKeys(
    useMemo<readonly Binding[]>(() => {
      const group = 'Timeline'
      return [
        ...COMMANDS.map(([keys, command, words]) => ({ keys, words, group, run: () => send({ op: 'command', command }) })),
        { keys: '/', words: 'Find kernels', group, run: () => window.dispatchEvent(new Event('cascade:find')) },
        { keys: 't', words: 'The same as a table', group, run: onTwin },
        ...configs.slice(0, 8).flatMap(({ letter, name }, at) => [
          { keys: String(at + 1), words: `Only ${letter} ${name}; again: all`, group: 'Configs', run: () => send({ op: 'solo', letter }) },
          {
            keys: `shift+${at + 1}`,
            words: `Compare with ${letter} ${name}`,
            group: 'Configs',
            run: () => send({ op: 'view', view: { baseline: letter }, isJump: false }),
          },
        ]),
      ]
    }, [send, configs, onTwin]),
  )
}
