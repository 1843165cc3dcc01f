import { expect, test } from 'vitest'
import { errorText, isTemporary, plainError } from './client'

test('the words of errors', () => {
  expect(errorText({ error: 'no such path' })).toBe('no such path')
  expect(errorText({ kind: 'Status', message: 'is forbidden' })).toBe('is forbidden')
  for (const none of [undefined, null, 5, {}, { error: '' }]) expect(errorText(none)).toBeUndefined()
  expect(plainError('Authorization denied for user ben\n', 'text/plain; charset=utf-8')).toBe('Authorization denied for user ben')
  expect(plainError('<html>', 'text/html')).toBeUndefined()
  expect(plainError('x'.repeat(2000), 'text/plain')).toBeUndefined()
  expect(plainError(' ', 'text/plain')).toBeUndefined()
})

test.each([
  [0, true],
  [429, true],
  [502, true],
  [503, true],
  [400, false],
  [401, false],
  [403, false],
  [404, false],
  [409, false],
  [500, false],
])('whether %i may end by itself', (status, want) => expect(isTemporary(status)).toBe(want))
