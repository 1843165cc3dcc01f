import { describe, expect, it } from 'vitest'
import { actionOfKey, moveInGrid } from './gridmoves'

const none = { altKey: false, ctrlKey: false, metaKey: false }

describe('actionOfKey', () => {
  it.each([
    ['+', 'zoomIn'],
    ['=', 'zoomIn'],
    ['-', 'zoomOut'],
    ['Enter', 'open'],
    [' ', 'open'],
    ['ArrowDown', 'move'],
    ['Home', 'move'],
  ] as const)('%s', (key, want) => expect(actionOfKey({ ...none, key })).toBe(want))

  it.each(['altKey', 'ctrlKey', 'metaKey'] as const)('leaves keys with %s to the browser', (modifier) => {
    for (const key of ['+', '=', '-', 'Enter', ' ', 'ArrowLeft', 'PageDown']) expect(actionOfKey({ ...none, key, [modifier]: true })).toBeUndefined()
  })

  it('goes to the corners with ctrl', () => {
    for (const key of ['Home', 'End']) expect(actionOfKey({ ...none, key, ctrlKey: true })).toBe('move')
    expect(moveInGrid({ row: 3, column: 3 }, 'Home', true, 9, 9, 4)).toEqual({ row: 0, column: -1 })
    expect(moveInGrid({ row: 3, column: 3 }, 'End', true, 9, 9, 4)).toEqual({ row: 8, column: 8 })
  })
})
