// The clusters of the fleet at /clusters, and one of them at /clusters/NAME.
import { ClusterDetail } from '../components/clusterdetail'
import { ClusterList } from '../components/clusterlist'
import { segments } from '../route'
import '../styles/clusters.css'
import '../styles/transfers.css'

export default function ClustersPage() {
  const name = segments.value[1]
  return name === undefined ? <ClusterList /> : <ClusterDetail key={name} name={name} />
}
