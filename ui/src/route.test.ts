import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test, vi } from 'vitest'

const page = { pathname: '/', search: '', hash: '', origin: 'https://ot.example.com' }
const history: string[] = []

function go(address: string): void {
  const url = new URL(address, page.origin)
  Object.assign(page, { pathname: url.pathname, search: url.search, hash: url.hash })
}

let route: typeof import('./route')

async function open(address: string): Promise<void> {
  go(address)
  vi.resetModules()
  route = await import('./route')
}

beforeEach(() => {
  vi.useFakeTimers()
  history.length = 0
  const write = (_: unknown, __: string, address: string): void => {
    go(address)
    history.push(address)
  }
  vi.stubGlobal('window', { location: page, addEventListener: () => undefined })
  vi.stubGlobal('history', { pushState: write, replaceState: write })
})

afterEach(() => vi.useRealTimers())

const ticks = Array.from({ length: 1000 }, (_, i) => `vmdi-farm/ubuntu-24.04.${i}`).join(',')

test('what is long is in the fragment, which no server sees', async () => {
  await open('/cleanup/spring?view=list')
  route.setParams({ tick: ticks, age: '168h' })
  expect(page.search).toBe('?view=list&age=168h')
  expect(page.hash.length).toBeGreaterThan(20_000)
  expect(route.param('tick')).toBe(ticks)
  expect(route.param('view')).toBe('list')
  await open(page.pathname + page.search + page.hash)
  expect(route.param('tick')).toBe(ticks)
  expect(route.param('age')).toBe('168h')
  route.setParams({ tick: undefined, age: undefined })
  expect(page).toMatchObject({ search: '?view=list', hash: '' })
})

test('an address of before, with all of it in the query, is read, and written anew with the next change', async () => {
  await open('/policy?draft=%7B%22a%22%3A%221%22%7D&base=7')
  expect(route.param('draft')).toBe('{"a":"1"}')
  expect(route.hrefWith({ base: '8' })).toBe('/policy?base=8#draft=%7B%22a%22%3A%221%22%7D')
})

test('of a fragment, only what is long is read', async () => {
  await open('/cleanup#key=secret&do=approve&tick=a%2Fb')
  expect(route.param('key')).toBe('')
  expect(route.param('do')).toBe('')
  expect(route.hrefWith({})).toBe('/cleanup#tick=a%2Fb')
})

test('links keep what is behind the #', async () => {
  await open('/cleanup')
  const anchor = { target: '', hasAttribute: () => false, origin: page.origin, pathname: '/policy', search: '?as=yaml', hash: '#draft=%7B%7D' }
  route.followLink({ button: 0, target: { closest: () => anchor }, preventDefault: () => undefined } as unknown as MouseEvent)
  expect(history).toEqual(['/policy?as=yaml#draft=%7B%7D'])
  expect(route.param('draft')).toBe('{}')
})

test('what is typed is known at once, and in the address as it rests', async () => {
  await open('/policy')
  for (let i = 1; i <= 100; i++) {
    route.setParams({ draft: `{"fleetConcurrency":"${i}"}` })
    expect(route.param('draft')).toBe(`{"fleetConcurrency":"${i}"}`)
    vi.advanceTimersByTime(100)
  }
  expect(history.length).toBeLessThan(30)
  vi.advanceTimersByTime(400)
  expect(history.at(-1)).toBe('/policy#draft=%7B%22fleetConcurrency%22%3A%22100%22%7D')
  route.setParams({ draft: '{}' })
  route.setParams({ draft: undefined, base: '7' })
  route.navigate('/clusters')
  expect(history.slice(-2), 'the entry that is left has its last state').toEqual(['/policy?base=7', '/clusters'])
  const n = history.length
  vi.advanceTimersByTime(1000)
  expect(history).toHaveLength(n)
})

test('the fragment is kept through the sign-in of a proxy, once and for the same address', async () => {
  const kept = new Map<string, string>()
  vi.stubGlobal('sessionStorage', { getItem: (k: string) => kept.get(k) ?? null, setItem: (k: string, v: string) => kept.set(k, v), removeItem: (k: string) => kept.delete(k) })
  Object.assign(page, { reload: () => go(page.pathname + page.search) })
  await open('/cleanup?view=list#tick=a%2Fb')
  route.reload()
  await open('/cleanup?view=list')
  expect(route.param('tick')).toBe('a/b')
  expect(page.hash).toBe('#tick=a%2Fb')
  await open('/cleanup?view=list')
  expect(route.param('tick')).toBe('')
  await open('/cleanup?view=list#tick=a%2Fb')
  route.reload()
  await open('/policy')
  expect(page.hash).toBe('')
  await open('/cleanup?view=list#tick=c')
  route.reload()
  await open('/cleanup?view=list#tick=d')
  expect(route.param('tick')).toBe('d')
})

// A list is asked for by its address: without the pause of TypedFilter, once a letter.
test('what is typed goes to the address by TypedFilter alone', () => {
  const files = readdirSync(import.meta.dirname, { recursive: true, encoding: 'utf8' }).filter((f) => f.endsWith('.tsx'))
  const direct = files.filter((f) => /onInput=\{[^\n]*setParams/.test(readFileSync(join(import.meta.dirname, f), 'utf8')))
  expect(direct, 'the matrix is filtered in the page').toEqual([join('components', 'matrixpanel.tsx')])
})
