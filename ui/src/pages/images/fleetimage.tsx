// One FleetDiskImage: versions × clusters.
import type { FleetImage, FleetImageList, ImageCluster, ImageClusters, ImageState, ImageVersion, VersionInCluster } from '../../api'
import { Command, formatMessage } from '../../components/command'
import { Hint } from '../../components/hint'
import { shellWord } from '../../shellword'
import { Chip, offsetOf, Pager } from '../../components/pager'
import { Page, Panel } from '../../components/panel'
import { Sign } from '../../components/sign'
import { Shown } from '../../components/states'
import { Table, type Column } from '../../components/table'
import { Age } from '../../components/time'
import { TypedFilter } from '../../components/typedfilter'
import { fieldsText, originText } from '../../effective'
import { formatBytes, formatCount, formatNumber, plainText } from '../../format'
import { fateOf, stateInCluster, unappliedPlan, wordOfImage } from '../../imagestates'
import { useAnswer } from '../../query'
import { href, hrefWith, param } from '../../route'
import { whyOf } from '../../why'
import { sourceHref } from './source'
import { VersionCounts } from './versioncounts'

export function FleetImagePage({ name }: { name: string }) {
  const answer = useAnswer<FleetImageList>('images/versions', { name }, ['images', 'rollouts', 'members'])
  return (
    <Page title={name} aside={<Command text={`kubectl ot image where ${shellWord(name)}`} />}>
      <Shown answer={answer} lines={6}>
        {(list) => list.images[0] && <FleetImageDetail image={list.images[0]} list={list} />}
      </Shown>
    </Page>
  )
}

function FleetImageDetail({ image, list }: { image: FleetImage; list: FleetImageList }) {
  return (
    <div class="image-list">
      <Panel title="Versions" aside={<a href={href('rollouts', image.name)}>Its rollout</a>}>
        <Table caption="List of versions" columns={versionColumns(image, list)} rows={image.versions} keyOf={(v) => v.version} />
        {(list.unknownClusters ?? 0) > 0 && (
          <p class="muted">
            <Sign tone="unknown">{formatCount(list.unknownClusters!, 'cluster')} may have more than is known.</Sign>
          </p>
        )}
      </Panel>
      <ClustersPanel image={image} />
    </div>
  )
}

const versionColumns = (image: FleetImage, list: FleetImageList): Column<ImageVersion>[] => [
  {
    title: 'Version',
    cell: (v) => (
      <>
        <strong>{v.version}</strong>
        {v.since && (
          <div class="muted nowrap">
            <Age at={v.since} ago />
          </div>
        )}
      </>
    ),
  },
  { title: `In ${formatCount(list.clusters, 'cluster')}`, cell: (v) => <VersionCounts version={v} clusters={list.clusters} hrefOf={(state) => hrefWith({ version: v.version, state, unreferenced: undefined, from: undefined })} /> },
  {
    title: 'Machines need it',
    cell: (v) => (
      <>
        in {formatNumber(v.referenced)}
        {v.unreferenced > 0 && (
          <>
            , <a href={hrefWith({ version: v.version, state: undefined, unreferenced: 'true', from: undefined })}>not in {formatNumber(v.unreferenced)}</a>
          </>
        )}
      </>
    ),
  },
  {
    title: 'Whether it goes',
    wide: true,
    cell: (v) => {
      const fate = fateOf(v, image.keepVersions, image.keepUnreferencedFor)
      return (
        <>
          <Sign tone={fate.tone}>{fate.text}</Sign>
          {fate.tone === 'attention' && !image.keepUnreferencedFor && <Command text={`kubectl ot prune report --images ${shellWord(v.image)}`} />}
        </>
      )
    },
  },
  { title: 'Disk', right: true, wide: true, cell: (v) => (v.diskBytes ? formatBytes(v.diskBytes) : <span class="muted">unknown</span>) },
  { title: 'Source', wide: true, cell: (v) => (v.source ? <a class="nowrap" href={sourceHref(v.source)}>its source</a> : <span class="muted">not recorded</span>) },
]

const clustersLimit = 25

function ClustersPanel({ image }: { image: FleetImage }) {
  const [version, state, unreferenced] = [param('version'), param('state'), param('unreferenced') === 'true']
  const query = { name: image.name, version, state, unreferenced, search: param('q'), offset: offsetOf('from') || undefined, limit: clustersLimit }
  const answer = useAnswer<ImageClusters>('images/clusters', query, ['images', 'rollouts', 'members'])
  const shown = image.versions.filter((v) => version === '' || v.version === version)
  return (
    <Panel
      title="Clusters"
      aside={
        <>
          {version && <Chip label="version" value={version} without={{ version: undefined, from: undefined }} />}
          {state && <Chip label="state" value={wordOfImage(state as ImageState)} without={{ state: undefined, from: undefined }} />}
          {unreferenced && <Chip label="machines" value="none needs it" without={{ unreferenced: undefined, from: undefined }} />}
          <TypedFilter bare name="q" label="Part of a cluster's name" placeholder="Cluster" starts={['from']} />
        </>
      }
    >
      <Shown answer={answer}>
        {(list) => (
          <>
            <Table caption="List of clusters" columns={version ? oneVersion(image, version) : manyVersions(image, shown)} rows={list.clusters} keyOf={(c) => c.cluster} empty="No cluster is like that." />
            <Pager name="from" shown={list.clusters.length} limit={clustersLimit} total={list.total} of="clusters" />
          </>
        )}
      </Shown>
    </Panel>
  )
}

function clusterCell(c: ImageCluster) {
  return (
    <>
      <a href={href('clusters', c.cluster)}>{c.cluster}</a>
      {c.unknown && (
        <div>
          <Sign tone="unknown">{plainText(c.unknown, 60)}</Sign>
        </div>
      )}
      {c.effective?.waits && (
        <div>
          <Sign tone="attention">cannot begin: {plainText(c.effective.waits, 600)}</Sign>
        </div>
      )}
    </>
  )
}

/** What a cluster is to have of the current version: its source, its storage class and the overrides that they are from. Each field is in the hint. */
function EffectiveCell({ cluster: c }: { cluster: ImageCluster }) {
  if (!c.effective) return <span class="muted">–</span>
  return (
    <Hint text={fieldsText(c.effective)}>
      {plainText(c.effective.source ?? '', 200)} <span class="muted">{originText(c.effective)}</span>
    </Hint>
  )
}

/** A version in a cluster: its state in words, which leads to why it is there. */
function VersionCell({ image, cluster, v }: { image: FleetImage; cluster: string; v?: VersionInCluster }) {
  if (!v) return <span class="muted">–</span>
  const of = image.versions.find((known) => known.version === v.version)
  const references = v.reported?.references ?? 0
  const { word, tone } = stateInCluster(v)
  return (
    <span class={v.stale ? 'image-stale' : v.state === 'Ready' ? 'image-ready' : undefined}>
      <Sign tone={tone}>{of && v.reported ? <a href={hrefWith({ why: whyOf(cluster, of.namespace, of.image) })}>{word}</a> : word}</Sign>
      {references > 0 && <span class="muted"> {formatCount(references, 'machine')}</span>}
    </span>
  )
}

function manyVersions(image: FleetImage, shown: readonly ImageVersion[]): Column<ImageCluster>[] {
  return [
    { title: 'Cluster', cell: clusterCell },
    ...shown.slice(0, 6).map((v, i) => ({
      title: v.version,
      wide: i > 1,
      cell: (c: ImageCluster) => <VersionCell image={image} cluster={c.cluster} v={c.versions.find((has) => has.version === v.version)} />,
    })),
    { title: 'Is to have', wide: true, cell: (c) => <EffectiveCell cluster={c} /> },
  ]
}

function oneVersion(image: FleetImage, version: string): Column<ImageCluster>[] {
  const of = (c: ImageCluster): VersionInCluster | undefined => c.versions.find((v) => v.version === version)
  const dash = <span class="muted">–</span>
  return [
    { title: 'Cluster', cell: clusterCell },
    { title: 'State', cell: (c) => <VersionCell image={image} cluster={c.cluster} v={of(c)} /> },
    { title: 'Held by', cell: (c) => holdersText(of(c)) || dash },
    { title: 'Not needed for', wide: true, right: true, cell: (c) => (of(c)?.reported?.unreferencedSince ? <Age at={of(c)!.reported!.unreferencedSince!} /> : dash) },
    { title: 'Attempts', wide: true, right: true, cell: (c) => of(c)?.reported?.attempts ?? dash },
    { title: 'Download', wide: true, right: true, cell: (c) => (of(c)?.reported?.downloadBytes ? formatBytes(of(c)!.reported!.downloadBytes!) : dash) },
    { title: 'Storage', wide: true, right: true, cell: (c) => (of(c)?.reported?.bytes ? formatBytes(of(c)!.reported!.bytes!) : dash) },
    { title: 'Imported', wide: true, right: true, cell: (c) => (of(c)?.reported?.syncedAt ? <Age at={of(c)!.reported!.syncedAt!} ago /> : dash) },
    { title: 'What it says', wide: true, cell: (c) => (of(c)?.state === 'Ready' ? dash : formatMessage((unappliedPlan(of(c)?.reported) ?? of(c)?.reported)?.message ?? '', 200) || dash) },
  ]
}

/** The machines that need an image, as far as the cluster names them. */
function holdersText(v: VersionInCluster | undefined): string {
  const holders = v?.reported?.holders ?? []
  const more = (v?.reported?.references ?? 0) - holders.length
  return [...holders.map((h) => plainText(h, 80)), ...(more > 0 ? [holders.length > 0 ? `${more} more` : formatCount(more, 'machine')] : [])].join(', ')
}
