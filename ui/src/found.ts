// What a search finds: its words, where it leads, and the keys that choose among it.
import type { Found, FoundKind } from './api'

export const kindWords: Record<FoundKind, string> = { Cluster: 'cluster', Rollout: 'rollout', Version: 'version', Source: 'source' }

export function nameOfFound(f: Found): string {
  return f.kind === 'Version' ? `${f.name} ${f.version ?? ''}` : f.name
}

export function hrefOfFound(f: Found): string {
  const name = encodeURIComponent(f.name)
  switch (f.kind) {
    case 'Cluster':
      return `/clusters/${name}`
    case 'Rollout':
      return `/rollouts/${name}`
    case 'Version':
      return `/images/${name}`
    default:
      return `/images?source=${name}`
  }
}

/** Returns the option that a key leads to; -1 is the field itself. Nothing for a key that does not move. */
export function nextOption(at: number, key: string, count: number): number | undefined {
  if (count === 0) return undefined
  switch (key) {
    case 'ArrowDown':
      return at + 1 >= count ? -1 : at + 1
    case 'ArrowUp':
      return at < 0 ? count - 1 : at - 1
    default:
      return undefined
  }
}
