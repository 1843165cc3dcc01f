package doctor

// Groups of checks, in the order in which they are shown.
const (
	groupCluster  = "CLUSTER"
	groupCDI      = "CDI"
	groupStorage  = "STORAGE"
	groupQuota    = "QUOTA"
	groupKubeVirt = "KUBEVIRT"
	groupAgent    = "AGENT"
	groupSource   = "SOURCE"
)

type check struct {
	// id never changes: scripts compare it.
	id, group string
	// needs are sources without which the check cannot be made in a member.
	needs  []Source
	member func(*examiner)
	// hub makes the check from what the hub knows; nil where it knows nothing.
	hub func(*examiner)
}

var checks = []check{
	{id: "k8s-version", group: groupCluster, needs: []Source{SourceVersion}, member: (*examiner).kubernetesVersion},
	{id: "admission-v1", group: groupCluster, needs: []Source{SourceKinds}, member: (*examiner).admissionPolicies},
	{id: "mutating-admission", group: groupCluster, needs: []Source{SourceKinds}, member: (*examiner).mutatingPolicies},
	{id: "clock-skew", group: groupCluster, needs: []Source{SourceVersion}, member: (*examiner).clocks},
	{id: "webhook-timeouts", group: groupCluster, needs: []Source{SourceWebhooks}, member: (*examiner).webhooks, hub: reportedAs(webhookReasons)},
	{id: "namespace-exists", group: groupCluster, needs: []Source{SourceNamespaces}, member: (*examiner).namespaces, hub: reportedAs(namespaceReasons)},
	{id: "cdi-present", group: groupCDI, needs: []Source{SourceKinds}, member: (*examiner).cdiPresent, hub: reportedAs(cdiReasons)},
	{id: "cdi-version-known", group: groupCDI, needs: []Source{SourceKinds, SourceCDI}, member: (*examiner).cdiVersion, hub: reportedAs(cdiVersionReasons)},
	{id: "cdi-importproxy", group: groupCDI, needs: []Source{SourceKinds, SourceCDIConfig}, member: (*examiner).importProxy},
	{id: "default-sc", group: groupStorage, needs: []Source{SourceStorageClasses}, member: (*examiner).defaultStorageClass, hub: reportedAs(storageClassReasons)},
	{id: "storage-profile-complete", group: groupStorage, needs: []Source{SourceKinds, SourceStorageClasses, SourceProfiles}, member: (*examiner).storageProfiles, hub: reportedAs(profileReasons)},
	{id: "clone-strategy", group: groupStorage, needs: []Source{SourceKinds, SourceStorageClasses, SourceProfiles}, member: (*examiner).cloneStrategies},
	{id: "snapshot-class-driver", group: groupStorage, needs: []Source{SourceKinds, SourceStorageClasses, SourceSnapshotClasses, SourceImages}, member: (*examiner).snapshotClassDrivers, hub: reportedAs(snapshotClassReasons)},
	{id: "csi-capacity", group: groupStorage, needs: []Source{SourceStorageClasses, SourceCapacities}, member: (*examiner).capacities, hub: reportedAs(capacityReasons)},
	{id: "snapshot-controller", group: groupStorage, needs: []Source{SourceKinds, SourceImages}, member: (*examiner).snapshotController, hub: reportedAs(snapshotReasons)},
	{id: "quota-three-claims", group: groupQuota, needs: []Source{SourceQuotas, SourceImages}, member: (*examiner).quotas, hub: reportedAs(quotaReasons)},
	{id: "kubevirt-version", group: groupKubeVirt, needs: []Source{SourceKinds, SourceKubeVirt}, member: (*examiner).kubeVirtVersion},
	{id: "agent-running", group: groupAgent, needs: []Source{SourceDeployment, SourceLease}, member: (*examiner).agentRunning, hub: (*examiner).memberReports},
	{id: "agent-version-skew", group: groupAgent, needs: []Source{SourceDeployment, SourceReport}, member: (*examiner).agentVersion, hub: (*examiner).memberVersion},
	{id: "agent-rights", group: groupAgent, needs: []Source{SourceLedger}, member: (*examiner).agentRights, hub: (*examiner).reportedRights},
	{id: "budget-guarded", group: groupAgent, needs: []Source{SourceKinds, SourceDataVolumePolicy}, member: (*examiner).budgetGuard, hub: (*examiner).reportedGuard},
	{id: "one-download", group: groupAgent, needs: []Source{SourceKinds, SourceOneDownload}, member: (*examiner).oneDownload, hub: (*examiner).reportedOneDownload},
	{id: "policy-accepted", group: groupAgent, needs: []Source{SourcePolicy}, member: (*examiner).policyAccepted, hub: (*examiner).memberPolicy},
	{id: "secret-keys", group: groupSource, needs: []Source{SourceImages, SourceMachines}, member: (*examiner).secretKeys, hub: reportedAs(secretReasons)},
	{id: "source-head", group: groupSource, member: (*examiner).sourceHead},
}

// IDs returns the ids of all checks, in the order of their findings.
func IDs() []string {
	ids := make([]string, len(checks))
	for i := range checks {
		ids[i] = checks[i].id
	}
	return ids
}
