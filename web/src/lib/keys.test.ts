import { describe, expect, it, vi } from 'vitest'
import { Keys, printed } from './keys'

const key = (name: string, more: Partial<KeyboardEvent> = {}) =>
  ({ key: name, code: '', timeStamp: 0, preventDefault: () => undefined, ...more }) as KeyboardEvent
const FREE = { isTyping: false, singleKeys: true }
const bound = (keys: Keys, ...names: readonly string[]) =>
  names.map((name) => {
    const run = vi.fn()
    keys.bind([{ keys: name, words: name, group: 'test', run }])
    return run
  })

describe('keys', () => {
  it('act, the newest first, and no more once unbound', () => {
    const keys = new Keys()
    const [older] = bound(keys, 'f')
    const newer = vi.fn()
    const unbind = keys.bind([{ keys: 'f', words: '', group: '', run: newer }])
    keys.press(key('f'), FREE)
    expect(newer).toHaveBeenCalledOnce()
    unbind()
    keys.press(key('f'), FREE)
    expect(older).toHaveBeenCalledOnce()
    expect(newer).toHaveBeenCalledOnce()
  })

  it('leave letters to text fields, and to those who switched them off', () => {
    const keys = new Keys()
    const [letter, held] = bound(keys, 'f', 'ctrl+k')
    expect(keys.press(key('f'), { isTyping: true, singleKeys: true })).toBe(false)
    expect(keys.press(key('f'), { isTyping: false, singleKeys: false })).toBe(false)
    expect(letter).not.toHaveBeenCalled()
    expect(keys.press(key('k', { ctrlKey: true }), { isTyping: true, singleKeys: false })).toBe(true)
    expect(held).toHaveBeenCalledOnce()
  })

  it('follow each other within a second', () => {
    const keys = new Keys()
    const [chord, alone] = bound(keys, 'g t', 't')
    keys.press(key('g', { timeStamp: 0 }), FREE)
    keys.press(key('t', { timeStamp: 500 }), FREE)
    expect([chord, alone].map((one) => one?.mock.calls.length)).toEqual([1, 0])
    keys.press(key('g', { timeStamp: 1000 }), FREE)
    keys.press(key('t', { timeStamp: 3000 }), FREE)
    expect([chord, alone].map((one) => one?.mock.calls.length)).toEqual([1, 1])
  })

  it('tell a capital from a small letter, and a shifted digit by its place on the board', () => {
    const keys = new Keys()
    const [capital, digit, question] = bound(keys, 'shift+f', 'shift+1', '?')
    keys.press(key('F', { shiftKey: true }), FREE)
    keys.press(key('!', { shiftKey: true, code: 'Digit1' }), FREE)
    keys.press(key('?', { shiftKey: true }), FREE)
    expect([capital, digit, question].map((one) => one?.mock.calls.length)).toEqual([1, 1, 1])
  })

  it('are printed as on a board', () => {
    expect(printed('g t')).toBe('G then T')
    expect(printed('ctrl+k')).toBe('Ctrl K')
    expect(printed('ArrowLeft')).toBe('←')
  })
})
