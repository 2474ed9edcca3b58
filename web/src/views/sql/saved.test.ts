import { describe, expect, it } from 'vitest'
import { EMPTY, parseBook, withoutSaved, withRun, withSaved } from './saved'

describe('statements that were kept', () => {
  it('are remembered newest first, each once', () => {
    const book = ['select 1', 'select 2', ' select 1 '].reduce(withRun, EMPTY)
    expect(book.history).toEqual(['select 1', 'select 2'])
  })
  it('are no more than fifty', () => {
    const book = Array.from({ length: 80 }, (_, index) => `select ${index}`).reduce(withRun, EMPTY)
    expect(book.history.length).toBe(50)
    expect(book.history[0]).toBe('select 79')
  })
  it('have one statement per name', () => {
    const book = withSaved(withSaved(EMPTY, 'mine', 'select 1'), 'mine', 'select 2')
    expect(book.saved).toEqual([{ name: 'mine', sql: 'select 2' }])
    expect(withoutSaved(book, 'mine').saved).toEqual([])
  })
  it('survive whatever a browser stored', () => {
    for (const text of [null, '', '[]', '{"saved":[{}],"history":[3]}', 'not json']) {
      expect(parseBook(text)).toEqual(EMPTY)
    }
  })
})
