import { describe, expect, it } from 'vitest'
import { hrefOfFound, nameOfFound, nextOption } from './found'

describe('hrefOfFound', () => {
  it.each([
    [{ kind: 'Cluster', name: 'bergen' }, '/clusters/bergen', 'bergen'],
    [{ kind: 'Rollout', name: 'ubuntu' }, '/rollouts/ubuntu', 'ubuntu'],
    [{ kind: 'Version', name: 'ubuntu', version: '2.1' }, '/images/ubuntu', 'ubuntu 2.1'],
    [{ kind: 'Source', name: 'http https://x/?a=b#c' }, '/images?source=http%20https%3A%2F%2Fx%2F%3Fa%3Db%23c', 'http https://x/?a=b#c'],
  ] as const)('of %j', (found, href, name) => {
    expect(hrefOfFound(found)).toBe(href)
    expect(nameOfFound(found)).toBe(name)
  })
})

describe('nextOption', () => {
  it('goes through all options and the field, both ways', () => {
    for (const key of ['ArrowDown', 'ArrowUp']) {
      const seen = new Set<number>()
      let at = -1
      for (let i = 0; i < 4; i++) {
        at = nextOption(at, key, 3)!
        seen.add(at)
      }
      expect(at).toBe(-1)
      expect(seen.size).toBe(4)
    }
  })
  it.each(['a', 'Tab', 'ArrowLeft'])('leaves %s to the field', (key) => expect(nextOption(0, key, 3)).toBeUndefined())
  it('has nowhere to go among none', () => expect(nextOption(-1, 'ArrowDown', 0)).toBeUndefined())
})
