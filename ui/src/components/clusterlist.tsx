// The clusters of the fleet: searched, filtered, sorted and paged by the hub.
import { StateUnknown, type Member, type MemberList } from '../api'
import { countStates, listCommand } from '../clusters'
import { formatAge, formatNumber, plainText } from '../format'
import { useAnswer } from '../query'
import { href, hrefWith, param } from '../route'
import { Command, formatMessage } from './command'
import { Hint } from './hint'
import { offsetOf, Pager } from './pager'
import { Meter, Page, Panel } from './panel'
import { Sign, toneOf } from './sign'
import { Empty, Shown } from './states'
import { Table, type Column } from './table'
import { Age } from './time'
import { TypedFilter } from './typedfilter'

const rowsShown = 50

export function ClusterList() {
  const asked = { search: param('q'), state: param('state'), selector: param('selector'), sort: param('sort'), order: param('order'), offset: offsetOf('offset') || undefined, limit: rowsShown }
  const answer = useAnswer<MemberList>('members', asked, ['members', 'images', 'transfers'], 3000)
  const command = listCommand(asked)
  return (
    <Page title="Clusters" aside={command && <Command text={command} />}>
      <Filters />
      <Shown answer={answer} lines={12}>
        {(list) =>
          list.states.total === 0 && !isFiltered() ? (
            <Empty title="No cluster is in the fleet yet.">
              <Command text="kubectl ot join push NAME --member CONTEXT" />
              <Command text="kubectl ot join pull NAME --member CONTEXT" />
            </Empty>
          ) : (
            <Panel title={<States list={list} />} aside={<Pager name="offset" shown={list.members.length} limit={rowsShown} total={list.total} of="clusters" />}>
              <Table caption="Clusters" columns={columns} rows={list.members} keyOf={(m) => m.member} empty="No cluster matches." />
              <Pager name="offset" shown={list.members.length} limit={rowsShown} total={list.total} of="clusters" />
            </Panel>
          )
        }
      </Shown>
    </Page>
  )
}

function isFiltered(): boolean {
  return ['q', 'state', 'selector'].some((name) => param(name) !== '')
}

/** The states that there are, as links that show only those. */
function States({ list }: { list: MemberList }) {
  const asked = param('state')
  return (
    <span class="states">
      <a href={hrefWith({ state: undefined, offset: undefined })} aria-current={asked === '' ? 'true' : undefined}>
        {formatNumber(list.states.total)} <span class="muted">all</span>
      </a>
      {countStates(list.states, asked).map((s) => (
        <a key={s.state} href={hrefWith({ state: asked === s.state ? undefined : s.state, offset: undefined })} aria-current={asked === s.state ? 'true' : undefined}>
          <Sign tone={toneOf(s.state)}>{formatNumber(s.n)}</Sign> <span class="muted">{s.label}</span>
        </a>
      ))}
      {list.states.unknown > 0 && (
        <a href={hrefWith({ state: asked === StateUnknown ? undefined : StateUnknown, offset: undefined })} aria-current={asked === StateUnknown ? 'true' : undefined}>
          <Sign tone="unknown">{formatNumber(list.states.unknown)}</Sign> <span class="muted">may have more than is known</span>
        </a>
      )}
    </span>
  )
}

function Filters() {
  return (
    <div class="filters" role="search" aria-label="Clusters">
      <TypedFilter name="q" label="Name or label" starts={['offset']} />
      <TypedFilter name="selector" label="Selector" placeholder="region=nordics" starts={['offset']} />
    </div>
  )
}

const unknown = <span class="muted">unknown</span>

/** Dims numbers that a cluster reported before it fell silent, or was put into quarantine. */
function asReported(cell: Column<Member>['cell']): Column<Member>['cell'] {
  return (m) =>
    (m.state === 'Silent' || m.state === 'Quarantined') && m.lastReport ? (
      <Hint class="stale" text={`as of ${formatAge(m.lastReport)} ago`}>
        {cell(m)}
      </Hint>
    ) : (
      cell(m)
    )
}

const columns: Column<Member>[] = [
  { title: 'Cluster', sort: 'name', cell: (m) => <a href={href('clusters', m.member)}>{plainText(m.member, 60)}</a> },
  {
    title: 'State',
    sort: 'state',
    cell: (m) => (
      <Hint class="cell-state" text={m.message ? formatMessage(m.message) : undefined}>
        {/* A wall of ticks would hide the faults. */}
        <Sign tone={m.state === 'Ready' ? 'quiet' : toneOf(m.state)}>{m.state === 'Ready' ? <span class="muted">Ready</span> : m.state}</Sign>
        {m.reason && m.reason !== m.state && m.state !== 'Ready' && m.reason !== 'Ready' && <span class="muted">{plainText(m.reason, 60)}</span>}
        {m.since && m.state !== 'Ready' && (
          <span class="muted">
            <Age at={m.since} />
          </span>
        )}
      </Hint>
    ),
  },
  {
    title: 'Slots',
    sort: 'slots',
    right: true,
    cell: asReported((m) =>
      m.slotsUsed === undefined || m.budget === undefined ? (
        unknown
      ) : (
        <span class="cell-slots">
          {m.slotsUsed > 0 && <Meter value={m.slotsUsed} max={m.budget} label={`Slots of ${m.member}: ${m.slotsUsed} of ${m.budget}`} />}
          <span class={m.slotsUsed > 0 ? undefined : 'muted'}>
            {m.slotsUsed} / {m.budget}
          </span>
        </span>
      ),
    ),
  },
  { title: 'Queued', sort: 'queued', right: true, cell: asReported((m) => quietNumber(m.queued)) },
  {
    title: 'Failing',
    sort: 'failing',
    right: true,
    cell: asReported((m) => (m.failingTotal === undefined ? unknown : m.failingTotal > 0 ? <Sign tone="bad">{formatNumber(m.failingTotal)}</Sign> : <span class="muted">0</span>)),
  },
  { title: 'Images', sort: 'images', right: true, wide: true, cell: asReported((m) => (m.state === 'NeverReported' ? unknown : formatNumber(m.images))) },
  { title: 'Agent', sort: 'version', wide: true, cell: (m) => (m.agentVersion ? plainText(m.agentVersion, 30) : unknown) },
  {
    title: 'Last report',
    sort: 'lastReport',
    right: true,
    cell: (m) => (m.lastReport ? <Age at={m.lastReport} ago /> : <span class="muted">never</span>),
  },
]

function quietNumber(n: number | undefined) {
  if (n === undefined) return unknown
  return n > 0 ? formatNumber(n) : <span class="muted">0</span>
}
