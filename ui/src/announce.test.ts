import { afterEach, beforeEach, expect, test, vi } from 'vitest'

let announce: typeof import('./announce')
const said: string[] = []

beforeEach(async () => {
  vi.useFakeTimers()
  vi.resetModules()
  announce = await import('./announce')
  said.length = 0
  announce.announcement.subscribe((text) => void (text !== '' && said.push(text)))
})

afterEach(() => vi.useRealTimers())

test('nothing that is announced is lost, and there are ten seconds between', () => {
  announce.announce('Approved.')
  vi.advanceTimersByTime(0)
  expect(said).toEqual(['Approved.'])
  announce.announce('Signing out failed.')
  announce.announce('Copied.')
  announce.announce('Copied.')
  vi.advanceTimersByTime(9999)
  expect(said).toHaveLength(1)
  vi.advanceTimersByTime(1)
  expect(said).toEqual(['Approved.', 'Signing out failed. Copied.'])
})

test('the same text twice is announced twice', () => {
  for (let i = 0; i < 3; i++) {
    announce.announce('Copied.')
    vi.advanceTimersByTime(10_000)
  }
  expect(said.map((text) => text.trim())).toEqual(['Copied.', 'Copied.', 'Copied.'])
})
