// Sizes as areas. The tiles are a list of checkboxes or links, for the keyboard and for readers of the screen.
import { useSignal } from '@preact/signals'
import { useEffect, useRef } from 'preact/hooks'
import { plainText } from '../format'
import { countLarge, squarify, type Rectangle } from '../treemap'
import '../styles/treemap.css'

export interface Tile {
  key: string
  /** In large letters, and in small. */
  name: string
  details: string[]
  size: number
  /** From 0 to 1: how dark it is drawn. */
  shade: number
  /** Drawn hatched, with a word about why. */
  mark?: string
}

interface Props {
  label: string
  tiles: readonly Tile[]
  /** What is beside the tiles, and not drawn on its own. */
  restSize: number
  restText: (tilesLeft: number) => string
  restHref: string
  ticked?: ReadonlySet<string>
  onTick?: (key: string, on: boolean) => void
  hrefOf?: (key: string) => string
}

function placeOf(a: Rectangle): Record<string, string> {
  return { left: `${a.x}px`, top: `${a.y}px`, width: `${a.width}px`, height: `${a.height}px` }
}

const smallestShare = 0.0025
const mostTiles = 120

export function Treemap({ label, tiles, restSize, restText, restHref, ticked, onTick, hrefOf }: Props) {
  const frame = useRef<HTMLUListElement>(null)
  const size = useSignal({ width: 0, height: 0 })
  const current = useSignal(0)
  useEffect(() => {
    if (!frame.current) return undefined
    const observer = new ResizeObserver(([entry]) => {
      if (entry) size.value = { width: entry.contentRect.width, height: entry.contentRect.height }
    })
    observer.observe(frame.current)
    return () => observer.disconnect()
  }, [])
  const { width, height } = size.value
  const sizes = tiles.map((t) => t.size)
  const drawn = countLarge([...sizes, restSize], smallestShare, Math.min(mostTiles, tiles.length))
  const rest = sizes.slice(drawn).reduce((a, b) => a + b, 0) + restSize
  const left = tiles.length - drawn
  const hasRest = rest > 0 || left > 0
  // What is drawn together has room for its words.
  const total = sizes.reduce((a, b) => a + b, 0) + restSize
  const areas = squarify(hasRest ? [...sizes.slice(0, drawn), Math.max(rest, total * 0.03, 1)] : sizes.slice(0, drawn), width, height)
  const at = Math.min(current.value, Math.max(0, drawn - 1))
  const move = (event: KeyboardEvent): void => {
    const targets: Record<string, number> = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: drawn - 1 }
    const to = targets[event.key]
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return
    event.preventDefault()
    current.value = Math.max(0, Math.min(drawn - 1, to))
    frame.current?.querySelectorAll<HTMLElement>('[data-tile]')[current.value]?.focus()
  }
  return (
    <ul ref={frame} class="treemap" aria-label={label} onKeyDown={move}>
      {tiles.slice(0, drawn).map((tile, i) => {
        const a = areas[i]!
        const isTicked = ticked?.has(tile.key) ?? false
        const lines = Math.floor((a.height - 12) / 20)
        const body = (
          <>
            <span class="tile-name">
              {onTick && a.width > 72 && (
                <span class="tile-box" aria-hidden="true">
                  {isTicked ? '✓' : ''}
                </span>
              )}
              <span>{plainText(tile.name)}</span>
            </span>
            {tile.details.slice(0, Math.max(0, lines - 1)).map((d) => (
              <span key={d} class="tile-detail">
                {plainText(d)}
              </span>
            ))}
          </>
        )
        const words = plainText([tile.key, ...tile.details, ...(tile.mark ? [tile.mark] : [])].join(', '))
        const shown = lines > 0 && a.width > 48
        return (
          <li
            key={tile.key}
            class={['tile', isTicked && 'tile-ticked', tile.mark && 'tile-marked'].filter(Boolean).join(' ')}
            style={{ ...placeOf(a), '--shade': `${Math.round(4 + tile.shade * 22)}%` }}
            title={words}
          >
            {onTick ? (
              <label>
                <input
                  type="checkbox"
                  data-tile
                  checked={isTicked}
                  tabIndex={i === at ? 0 : -1}
                  aria-label={words}
                  onFocus={() => (current.value = i)}
                  onChange={(event) => onTick(tile.key, event.currentTarget.checked)}
                />
                {shown && body}
              </label>
            ) : (
              <a href={hrefOf?.(tile.key)} data-tile tabIndex={i === at ? 0 : -1} aria-label={words} onFocus={() => (current.value = i)}>
                {shown && body}
              </a>
            )}
          </li>
        )
      })}
      {hasRest && width > 0 && (
        <li class="tile tile-rest" style={placeOf(areas[drawn]!)}>
          <a href={restHref}>{restText(left)}</a>
        </li>
      )}
    </ul>
  )
}
