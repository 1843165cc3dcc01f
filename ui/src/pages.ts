// The pages by the first segment of their address. Each is loaded when it is opened.
import type { ComponentType } from 'preact'

export interface PageEntry {
  path: string
  /** In the bar at the top; absent for pages that are reached otherwise. */
  label?: string
  title: string
  load: () => Promise<{ default: ComponentType }>
}

export const pages: PageEntry[] = [
  { path: '', label: 'Fleet', title: 'Fleet', load: () => import('./pages/fleet') },
  { path: 'transfers', label: 'Transfers', title: 'Transfers', load: () => import('./pages/transfers') },
  { path: 'rollouts', label: 'Rollouts', title: 'Rollouts', load: () => import('./pages/rollouts') },
  { path: 'clusters', label: 'Clusters', title: 'Clusters', load: () => import('./pages/clusters') },
  { path: 'images', label: 'Images', title: 'Images', load: () => import('./pages/images') },
  { path: 'cleanup', label: 'Clean up', title: 'Clean up', load: () => import('./pages/cleanup') },
  { path: 'policy', label: 'Policy', title: 'Policy', load: () => import('./pages/policy') },
  { path: 'profile', title: 'Profile', load: () => import('./pages/profile') },
]
