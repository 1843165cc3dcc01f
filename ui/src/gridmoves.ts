// Where the focus of a grid goes by a key.
import type { Row } from './matrix'

/** A place in a grid. A row of -1 is the headings of columns, a column of -1 those of rows. */
export interface Position {
  row: number
  column: number
}

/** Returns what a key does in a grid; nothing for those of the browser, such as ctrl and + to enlarge the page. */
export function actionOfKey({ key, altKey, ctrlKey, metaKey }: Pick<KeyboardEvent, 'key' | 'altKey' | 'ctrlKey' | 'metaKey'>): 'zoomIn' | 'zoomOut' | 'open' | 'move' | undefined {
  if (altKey || metaKey) return undefined
  if (ctrlKey) return key === 'Home' || key === 'End' ? 'move' : undefined
  switch (key) {
    case '+':
    case '=':
      return 'zoomIn'
    case '-':
      return 'zoomOut'
    case 'Enter':
    case ' ':
      return 'open'
    default:
      return 'move'
  }
}

/** Returns where a key leads; nothing for one that does not move. */
export function moveInGrid(at: Position, key: string, ctrl: boolean, rows: number, columns: number, page: number): Position | undefined {
  const { row, column } = at
  const moves: Record<string, Position> = {
    ArrowUp: { row: row - 1, column },
    ArrowDown: { row: row + 1, column },
    ArrowLeft: { row, column: column - 1 },
    ArrowRight: { row, column: column + 1 },
    PageUp: { row: row <= 0 ? row : Math.max(0, row - page), column },
    PageDown: { row: row + page, column },
    Home: ctrl ? { row: 0, column: -1 } : { row, column: -1 },
    End: ctrl ? { row: rows - 1, column: columns - 1 } : { row, column: columns - 1 },
  }
  const next = moves[key]
  if (!next) return undefined
  const toRow = Math.max(-1, Math.min(rows - 1, next.row))
  return { row: toRow, column: Math.max(toRow === -1 ? 0 : -1, Math.min(columns - 1, next.column)) }
}

const groupHeight = 28

/** The height of a row of the matrix. */
export function rowHeight(row: Row, zoom: number): number {
  return row.kind === 'group' ? groupHeight : zoom
}
