// Why an image of a cluster is where it is: opened over any page by the parameter why of the address.
import { param } from './route'

/** Returns the value of the parameter why. */
export function whyOf(cluster: string, namespace: string, name: string): string {
  return [cluster, namespace, name].map(encodeURIComponent).join('/')
}

export function WhyPanel() {
  if (param('why') === '') return null
  return null
}
