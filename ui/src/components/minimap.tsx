// A map of a matrix that is larger than what is seen of it.
import { useEffect, useRef } from 'preact/hooks'
import type { Cells, View } from '../matrix'
import { theme } from '../theme'
import { CellPainter, readColors } from './matrixcanvas'

/** Minimap shows all cells, and what is seen of them; a click goes there. The grid says the same to who cannot see. */
export function Minimap({ cells, view, element, seen, width, height }: { cells: Cells; view: View; element: HTMLElement; width: number; height: number; seen: { left: number; top: number; width: number; height: number } }) {
  const canvas = useRef<HTMLCanvasElement>(null)
  const dark = theme.dark.value
  useEffect(() => {
    const target = canvas.current
    const ctx = target?.getContext('2d')
    if (!target || !ctx) return
    const all = new CellPainter(readColors(target), 1, 1).pixelsOf(cells, view).canvas
    target.width = width * 2
    target.height = height * 2
    ctx.imageSmoothingEnabled = all.width > target.width
    ctx.drawImage(all, 0, 0, target.width, target.height)
  }, [cells, view, dark, width, height])
  const goTo = (event: PointerEvent): void => {
    if (event.type === 'pointermove' && event.buttons === 0) return
    const frame = canvas.current!.getBoundingClientRect()
    element.scrollTo({
      left: ((event.clientX - frame.left) / frame.width) * element.scrollWidth - element.clientWidth / 2,
      top: ((event.clientY - frame.top) / frame.height) * element.scrollHeight - element.clientHeight / 2,
    })
  }
  return (
    <div class="minimap" aria-hidden="true" style={{ width: `${width}px`, height: `${height}px` }} onPointerDown={goTo} onPointerMove={goTo}>
      <canvas ref={canvas} />
      <span class="minimap-window" style={{ left: `${seen.left * 100}%`, top: `${seen.top * 100}%`, width: `${seen.width * 100}%`, height: `${seen.height * 100}%` }} />
    </div>
  )
}
