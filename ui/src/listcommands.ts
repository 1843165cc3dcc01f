// The kubectl ot commands beside lists of rollouts and images. Where none lists the same there is none: one
// that lists others would mislead.

/** Makes a first image, but for the clusters that get it. */
const publish = 'kubectl ot image publish ubuntu --version 24.04 --url https://images.example.com/ubuntu-24.04.qcow2 --size 20Gi --target-namespace images'

/** Publishes a first image to the clusters with a label. */
export const publishCommand = `${publish} -l region=nordics`

/** Publishes a first image to the cluster that joined as NAME, and waits until it is there. */
export const publishFirstCommand = `${publish} --clusters NAME --wait`

/** Returns the command that lists the same rollouts, in whatever order; undefined where none does. */
export function listRolloutsCommand(filter: { search: string; phase: string }): string | undefined {
  return filter.search === '' && filter.phase === '' ? 'kubectl ot get rollouts' : undefined
}

/** Returns the command that lists the same images: those of all sources, or the FleetDiskImages, each of which has its rollout; undefined where none does. */
export function listImagesCommand(filter: { search: string; of: string }): string | undefined {
  if (filter.search !== '') return undefined
  return filter.of === 'sources' ? 'kubectl ot get images' : 'kubectl ot get rollouts'
}
