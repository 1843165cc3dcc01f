import type { ComponentChildren } from 'preact'
import { hrefWith, param } from '../route'

export interface Column<Row> {
  title: string
  /** Numbers stand at the right. */
  right?: boolean
  /** The name by which the server sorts; absent where it does not. */
  sort?: string
  /** Left out on narrow screens. */
  wide?: boolean
  cell: (row: Row) => ComponentChildren
}

/** Table shows rows. It is sorted by the server, by the parameters sort and order of the address. */
export function Table<Row>({ caption, columns, rows, keyOf, empty }: { caption: string; columns: Column<Row>[]; rows: readonly Row[]; keyOf: (row: Row) => string; empty?: ComponentChildren }) {
  if (rows.length === 0 && empty) return <p class="muted">{empty}</p>
  const sorted = param('sort')
  const descending = param('order') === 'desc'
  return (
    <div class="table-frame" tabIndex={0} role="region" aria-label={caption}>
      <table class="rows">
        <caption class="visually-hidden">{caption}</caption>
        <thead>
          <tr>
            {columns.map((c) => (
              <th key={c.title} scope="col" class={classOf(c)} aria-sort={c.sort && c.sort === sorted ? (descending ? 'descending' : 'ascending') : undefined}>
                {c.sort ? <a href={hrefWith({ sort: c.sort, order: c.sort === sorted && !descending ? 'desc' : undefined, offset: undefined })}>{c.title}</a> : c.title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={keyOf(row)}>
              {columns.map((c) => (
                <td key={c.title} class={classOf(c)} data-title={c.title}>
                  {c.cell(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  )
}

function classOf<Row>(c: Column<Row>): string | undefined {
  return [c.right && 'right', c.wide && 'wide'].filter(Boolean).join(' ') || undefined
}
