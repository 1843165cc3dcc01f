// Images: those of the fleet by version, and all sources that clusters have.
import type { FleetImage, FleetImageList, Image, ImageList } from '../api'
import { Choices } from '../components/choices'
import { Command } from '../components/command'
import { offsetOf, Pager } from '../components/pager'
import { Page } from '../components/panel'
import { Sign } from '../components/sign'
import { Empty, Shown } from '../components/states'
import { Table, type Column } from '../components/table'
import { Age } from '../components/time'
import { TypedFilter } from '../components/typedfilter'
import { formatBytes, formatCount, formatNumber, plainText } from '../format'
import { listImagesCommand, publishCommand } from '../listcommands'
import { useAnswer } from '../query'
import { href, param, segments } from '../route'
import '../styles/images.css'
import { FleetImagePage } from './images/fleetimage'
import { SourcePage, sourceHref } from './images/source'
import { VersionCounts } from './images/versioncounts'

const pageLength = 25

export default function ImagesPage() {
  const name = segments.value[1]
  if (name !== undefined) return <FleetImagePage key={name} name={name} />
  if (param('source')) return <SourcePage key={param('source')} source={param('source')} />
  const command = listImagesCommand({ search: param('q'), of: param('of') })
  return (
    <Page title="Images" aside={command && <Command text={command} />}>
      <div class="filters">
        <Choices
          name="of"
          label="Which images"
          resets="offset"
          options={[
            { value: '', label: 'Of the fleet' },
            { value: 'sources', label: 'All sources' },
          ]}
        />
        <TypedFilter bare name="q" label="Name, version or source" placeholder={param('of') === 'sources' ? 'Part of a source' : 'Name or version'} starts={['offset']} />
      </div>
      {param('of') === 'sources' ? <Sources /> : <FleetImages />}
    </Page>
  )
}

function FleetImages() {
  const answer = useAnswer<FleetImageList>('images/versions', { search: param('q'), offset: offsetOf('offset') || undefined, limit: pageLength }, ['images', 'rollouts', 'members'])
  return (
    <Shown answer={answer} lines={8}>
      {(list) =>
        list.total === 0 && param('q') === '' ? (
          <Empty title="The fleet has no image of its own yet.">
            <p>A FleetDiskImage brings an image to a part of the fleet, version by version:</p>
            <Command text={publishCommand} />
          </Empty>
        ) : (
          <div class="image-list">
            <Table caption="Images of the fleet" columns={fleetColumns(list.clusters)} rows={rowsOf(list.images)} keyOf={(r) => `${r.image.name} ${r.version.version}`} empty="No image is like that." />
            {(list.unknownClusters ?? 0) > 0 && (
              <p class="muted">
                <Sign tone="unknown">{formatCount(list.unknownClusters!, 'cluster')} may have more than is known.</Sign>
              </p>
            )}
            <Pager name="offset" shown={list.images.length} limit={pageLength} total={list.total} of="images" />
          </div>
        )
      }
    </Shown>
  )
}

interface VersionRow {
  image: FleetImage
  version: FleetImage['versions'][number]
  first: boolean
}

/** The newest versions of each image. */
function rowsOf(images: readonly FleetImage[]): VersionRow[] {
  return images.flatMap((image) => image.versions.slice(0, 3).map((version, i) => ({ image, version, first: i === 0 })))
}

const fleetColumns = (clusters: number): Column<VersionRow>[] => [
  {
    title: 'Image',
    cell: ({ image, first }) =>
      first ? (
        <a class="image-name" href={href('images', image.name)}>
          {image.name}
        </a>
      ) : (
        <span class="visually-hidden">{image.name}</span>
      ),
  },
  {
    title: 'Version',
    cell: ({ image, version, first }) => (
      <>
        <span class={first ? 'image-current' : 'muted'}>{version.version}</span>
        {!first && image.versions.length > 3 && version === image.versions[2] && <span class="muted"> and {image.versions.length - 3} older</span>}
      </>
    ),
  },
  { title: 'In clusters', cell: ({ version }) => <VersionCounts version={version} clusters={clusters} /> },
  { title: 'Needed in', right: true, wide: true, cell: ({ version }) => (version.referenced > 0 ? formatNumber(version.referenced) : <span class="muted">–</span>) },
  { title: 'Ready, not needed', right: true, wide: true, cell: ({ version }) => (version.unreferenced > 0 ? formatNumber(version.unreferenced) : <span class="muted">–</span>) },
  { title: 'Disk', right: true, wide: true, cell: ({ version }) => (version.diskBytes ? formatBytes(version.diskBytes) : <span class="muted">unknown</span>) },
]

function Sources() {
  const query = { search: param('q'), sort: param('sort'), order: param('order'), offset: offsetOf('offset') || undefined, limit: pageLength }
  const answer = useAnswer<ImageList>('images', query, ['images'])
  return (
    <Shown answer={answer} lines={8}>
      {(list) => (
        <div class="image-list">
          <Table caption="Sources" columns={sourceColumns} rows={list.images} keyOf={(i) => i.source} empty={param('q') ? 'No source is like that.' : 'No cluster has reported an image yet.'} />
          {(list.unknownMembers?.length ?? 0) > 0 && (
            <p class="muted">
              <Sign tone="unknown">{formatCount(list.unknownMembers!.length, 'cluster')} may have any of them.</Sign>
            </p>
          )}
          <Pager name="offset" shown={list.images.length} limit={pageLength} total={list.total} of="sources" />
        </div>
      )}
    </Shown>
  )
}

const sourceColumns: Column<Image>[] = [
  {
    title: 'Source',
    sort: 'source',
    cell: (i) => (
      <a class="image-source" href={sourceHref(i.source)}>
        {plainText(shortSource(i.source), 160)}
      </a>
    ),
  },
  { title: 'Clusters', sort: 'members', right: true, cell: (i) => formatNumber(i.members) },
  { title: 'Failed', right: true, cell: (i) => (i.phases?.Failed ? <Sign tone="bad">{formatNumber(i.phases.Failed)}</Sign> : <span class="muted">–</span>) },
  { title: 'Machines', sort: 'references', right: true, wide: true, cell: (i) => formatNumber(i.references) },
  { title: 'Storage', sort: 'bytes', right: true, wide: true, cell: (i) => formatBytes(i.bytes) },
  { title: 'Unreferenced', sort: 'unreferenced', right: true, wide: true, cell: (i) => (i.unreferencedSince ? <Age at={i.unreferencedSince} /> : <span class="muted">–</span>) },
]

/** A checksum is shown in short: what tells images apart is their URL. */
function shortSource(source: string): string {
  return source.replace(/ (md5|sha1|sha256|sha512):([0-9a-f]{8})[0-9a-f]+$/, ' $1:$2…')
}
