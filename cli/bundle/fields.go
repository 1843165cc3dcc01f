package bundle

import (
	"slices"
	"strings"

	"github.com/pelotech/ot-fleet/api/policy"
)

// class says what may stay of a field.
type class int

const (
	// classPrivate: nothing. What is not listed below is private.
	classPrivate class = iota
	// classContainer is an object or a list whose fields are judged by themselves. A name can
	// be one and a text elsewhere, as status.
	classContainer
	// classPlain is a name, a version, a size or a time, if it looks like one.
	classPlain
	// classText is a sentence of a program.
	classText
	// classURL and classSource lose their query, user and password.
	classURL
	classSource
	// classMap has keys of anybody.
	classMap
)

var classes = map[class]string{
	classContainer: `
		metadata ownerReferences spec status conditions template rollout waves approvals placement clusterSelector matchExpressions retention
		connection kubeconfigSecretRef clusterAPI pull vmDiskImageRef vmDiskImageTemplate disks image interfaces routes resources instancetype preference
		users passwordSecretRef cloudInit userDataSecretRef images prunes retired kept inquiries imageSelector reportRef limits sources
		revisions failure orderingKey serving references prune pinned rootDisk volume slots grant plan policy transfers
		acknowledgedPlan ahead blocked failing skipped unknownClusters versions clusters candidates orphans lastFailure totals phases counts candidatesByReason
		involvedObject containers initContainers containerStatuses initContainerStatuses state lastState waiting running terminated selector
		importProxy claimPropertySets filesystemOverhead summary members rollouts budget
		root page pages activity rates transferred source answeredPlan reclaimable storage downloads active head
		uptime online open`,
	classPlain: `
		apiVersion kind name namespace uid resourceVersion creationTimestamp deletionTimestamp finalizers controller blockOwnerDeletion
		type status reason state phase outcome lastTransitionTime observedAt startedAt finishedAt completedAt doneAt acquiredAt importedAt progressedAt
		notBefore since until time at plannedAt pendingUntil expectedAt heldUntil silentSince lastReport lastSuccessAt lastScheduleTime nextScheduleTime
		blockedSince unreferencedSince snapshotSince resyncsSince oldestQueuedSince syncedAt answerDeadline deadline undoWindow unreferencedFor keepUnreferencedFor
		minSuccessTime progressDeadline deleteUnreferencedAfter maxConcurrency maxFailures offlineClusters deletionPolicy schedule timeZone
		agentNamespace agentVersion clusterUID cluster clusterNames excludedClusters names namespaces key operator version wave currentWave targetNamespace imageName
		sourceType pullMethod secretRef certConfigMap secretExtraHeaders checksum storageClass snapshotClass diskSize size restoreSize cpu memory bus imageMode runStrategy
		baseVm baseVmVersion network macAddress ipAddress gateway to via nameservers additionalAddresses
		revision servingRevision dataVolume volumeSnapshot persistentVolumeClaim importPhase progress host holders printableStatus policyVersion policyUID bootID hash digest
		lastTimestamp nodeName restartPolicy startTime renewTime acquireTime holderIdentity imageID containerID serviceAccountName
		accessModes volumeMode cloneStrategy provisioner reclaimPolicy volumeBindingMode scratchSpaceStorageClass dataImportCronSourceFormat
		imageUID endedPrunes shard replica carrier mode another origin declaredBy imageFields dropped
		from secondsBefore firstDoneAt awaitedClusters pendingRetries successesRecorded taken`,
	classText: `message detail syncError cleanUpError policySource planPolicySource heldPolicy unknown`,
	classURL:  `url`,
	classMap:  `labels annotations matchLabels data planPolicy`,
}

// containers and leaves by name.
var containers, leaves = func() (map[string]bool, map[string]class) {
	containers, leaves := map[string]bool{}, map[string]class{}
	for class, names := range classes {
		for _, name := range strings.Fields(names) {
			if class == classContainer {
				containers[name] = true
				continue
			}
			leaves[name] = class
		}
	}
	return containers, leaves
}()

// exceptions are paths whose last name means something else there.
var exceptions = []struct {
	path  []string
	class class
}{
	{[]string{"spec", "name"}, classPrivate}, // of the disk, for people
	{[]string{"template", "name"}, classPrivate},
	{[]string{"vmDiskImageTemplate", "name"}, classPrivate},
	{[]string{"quarantine", "reason"}, classPrivate},
	{[]string{"images", "source"}, classSource},
	{[]string{"revisions", "source"}, classURL},
	{[]string{"policy", "source"}, classText},
	{[]string{"policy", "data"}, classMap},
	{[]string{"orphans", "image"}, classPlain},
	{[]string{"versions", "image"}, classPlain},
	{[]string{"containers", "image"}, classPlain},
	{[]string{"initContainers", "image"}, classPlain},
	{[]string{"containerStatuses", "image"}, classPlain},
	{[]string{"kept", "images"}, classPlain},
	{[]string{"spec", "images"}, classContainer},
	{[]string{"spec", "clusters"}, classPlain},
	{[]string{"references", "holders"}, classPlain},
}

// classOf returns what may stay of the field at the end of a path without indexes. holds: it is
// an object or a list of objects.
func classOf(path []string, holds bool) class {
	for _, e := range exceptions {
		if len(path) >= len(e.path) && slices.Equal(path[len(path)-len(e.path):], e.path) {
			return e.class
		}
	}
	name := path[len(path)-1]
	switch class := leaves[name]; {
	case class == classText && name != "policySource" && name != "heldPolicy" && slices.ContainsFunc(path, isWrittenByPeople):
		return classPrivate
	case !holds, class == classMap:
		return class
	case containers[name]:
		return classContainer
	default:
		return classPrivate
	}
}

// isWrittenByPeople: programs write no sentences into specs and their copies.
func isWrittenByPeople(name string) bool {
	return name == "spec" || name == "template" || name == "vmDiskImageTemplate"
}

// ownPrefixes of labels whose values are ours or the charts'.
var ownPrefixes = []string{"pelotech.ot/", "app.kubernetes.io/", "helm.sh/", "cdi.kubevirt.io/", "kubevirt.io/"}

// isKnownKey reports whether the value of a key may stay if it is plain: keys of the policy, and
// labels of ours. Annotations stay private, since people retry and accept by them.
func isKnownKey(mapName, key string) bool {
	switch mapName {
	case "policy", "planPolicy", "data":
		return slices.Contains(policy.ConfigMapKeys(), key)
	case "labels":
		return slices.ContainsFunc(ownPrefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
	default:
		return false
	}
}
