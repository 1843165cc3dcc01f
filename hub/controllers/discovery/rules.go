package discovery

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/pelotech/ot-fleet/hub/memberlabels"
)

// Everything in a list of Rules stands for all namespaces or labels.
const Everything = "*"

// Rules say what authors of Clusters may decide about members of the fleet. The zero
// value lets no Cluster join and copies no label.
type Rules struct {
	// Namespaces whose Clusters may join. MemberClusters that exist keep their
	// Clusters wherever these are.
	Namespaces []string
	// OwnNames are namespaces whose members are named as their Clusters. A name brings
	// overrides of the policy and values of the agent's chart with it: all others
	// are qualified by their namespace.
	OwnNames []string
	// LabelPrefixes of the labels that are copied from a Cluster or Secret.
	LabelPrefixes []string
}

// Validate returns what is wrong with the rules.
func (r Rules) Validate() error {
	var problems []error
	for _, namespace := range slices.Concat(r.Namespaces, r.OwnNames) {
		if namespace != Everything && len(validation.IsDNS1123Label(namespace)) > 0 {
			problems = append(problems, fmt.Errorf("%q is not the name of a namespace: name one, or %s for all", namespace, Everything))
		}
	}
	return errors.Join(problems...)
}

func (r Rules) mayJoin(namespace string) bool {
	return slices.Contains(r.Namespaces, namespace) || slices.Contains(r.Namespaces, Everything)
}

func (r Rules) hasOwnNames(namespace string) bool {
	return slices.Contains(r.OwnNames, namespace) || slices.Contains(r.OwnNames, Everything)
}

func (r Rules) mayCopyLabel(key string) bool {
	return !memberlabels.IsReserved(key) && (slices.Contains(r.LabelPrefixes, Everything) || hasAnyPrefix(key, r.LabelPrefixes))
}

func hasAnyPrefix(key string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}

// action is what is to be done about a Cluster.
type action string

const (
	actionNone       action = "none"
	actionDelete     action = "delete the MemberCluster"
	actionCreate     action = "create a MemberCluster"
	actionRefuse     action = "refuse"
	actionCopyLabels action = "copy labels"
	actionKeep       action = "keep the MemberCluster in quarantine"
)

// clusterState is a Cluster with its MemberCluster.
type clusterState struct {
	namespace string
	// exists: the Cluster is there. A Cluster that is being deleted remains a member until
	// it is gone: that may take long, and its agent works on meanwhile.
	exists, deleting bool
	// selected: the selector matches its labels.
	selected bool
	// hasMember: a MemberCluster names it. discovered: this controller created that one.
	hasMember, discovered bool
	// replaced: the MemberCluster is of a Cluster that was deleted and created again since.
	replaced bool
	// quarantined: a person has put the member into quarantine.
	quarantined bool
}

// decide returns what to do about a Cluster. Invariant: a MemberCluster that this
// controller did not create is never changed; one that it created keeps its name until
// its Cluster is gone or no longer selected, whatever the rules have become.
//
// Invariant: only a person ends a quarantine. A MemberCluster that is deleted and created
// again has none, and whoever may label or delete the Cluster could have it so.
func (r Rules) decide(c clusterState) action {
	wanted := c.exists && c.selected
	switch {
	case c.hasMember && !c.discovered:
		return actionNone
	case c.hasMember && (!wanted || c.replaced) && c.quarantined:
		return actionKeep
	case c.hasMember && (!wanted || c.replaced):
		return actionDelete
	case c.hasMember:
		return actionCopyLabels
	case !wanted || c.deleting:
		return actionNone
	case !r.mayJoin(c.namespace):
		return actionRefuse
	}
	return actionCreate
}
