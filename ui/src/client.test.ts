import { expect, test, vi } from 'vitest'
import { errorText, getJSON, isTemporary, plainError, withParams } from './client'

test('a question that may be long is the body, with the header of changes', async () => {
  const asked: { path: string; init: RequestInit }[] = []
  vi.stubGlobal('fetch', (path: string, init: RequestInit) => {
    asked.push({ path, init })
    return Promise.resolve(new Response('{}'))
  })
  const images = Array.from({ length: 1000 }, (_, i) => `vmdi-farm/ubuntu-${i}`).join(',')
  await getJSON(withParams('/fleet/v1/prunereports/groups', { report: 'spring', images, limit: 5 }))
  await getJSON(withParams('/fleet/v1/members', { limit: 5 }))
  vi.unstubAllGlobals()
  expect(asked[0]!.path).toBe('/fleet/v1/prunereports/groups')
  expect(asked[0]!.init).toMatchObject({ method: 'POST', headers: { 'Ot-Fleet': '1', 'Content-Type': 'application/json' } })
  expect(JSON.parse(asked[0]!.init.body as string)).toEqual({ report: 'spring', images, limit: '5' })
  expect(asked[1]).toMatchObject({ path: '/fleet/v1/members?limit=5', init: { cache: 'no-cache' } })
})

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
