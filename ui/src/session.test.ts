import { expect, test, vi } from 'vitest'

vi.stubGlobal('window', { location: { hash: '', pathname: '/', search: '' } })
const { describeEnd } = await import('./session')

test('the end of a session is said once a minute', () => {
  const said = new Set<string>()
  for (let left = 240_000; left > 230_000; left -= 1000) said.add(describeEnd(left))
  expect([...said]).toEqual(['Your session ends in less than 4 minutes.'])
  expect(describeEnd(1000)).toBe('Your session ends in less than 1 minute.')
  expect(describeEnd(0)).toBe('Your session is ending.')
})
