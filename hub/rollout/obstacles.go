package rollout

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// obstacles are the reasons why a cluster cannot begin until a person acts.
var obstacles = []string{v1alpha1.ReasonLabelMissing, v1alpha1.ReasonSourceInvalid, v1alpha1.ReasonFieldsUnknown}

func isObstacle(reason string) bool { return slices.Contains(obstacles, reason) }

// findObstacle returns the first obstacle of a cluster; empty for none.
func (c *placedCluster) findObstacle() string {
	switch {
	case len(c.effective.MissingLabels) > 0:
		return v1alpha1.ReasonLabelMissing
	case c.effective.Invalid != "":
		return v1alpha1.ReasonSourceInvalid
	case len(c.UnknownFields) > 0:
		return v1alpha1.ReasonFieldsUnknown
	default:
		return ""
	}
}

// hasSource reports whether it is known what the cluster is to have.
func (c *placedCluster) hasSource() bool {
	return len(c.effective.MissingLabels) == 0 && c.effective.Invalid == ""
}

// obstacleMessage says what the obstacle is and what to do.
func (c *placedCluster) obstacleMessage() string {
	switch c.obstacle {
	case v1alpha1.ReasonLabelMissing:
		return fmt.Sprintf("its MemberCluster has no %s, which spec.overrides[%d].url names: set it there, or have the override select other clusters",
			pluralLabels(c.effective.MissingLabels), c.effective.From["url"])
	case v1alpha1.ReasonSourceInvalid:
		return c.effective.Invalid
	default:
		return c.unknownFieldsMessage()
	}
}

func pluralLabels(keys []string) string {
	label := "label "
	if len(keys) > 1 {
		label = "labels "
	}
	return label + v1alpha1.JoinFirst(keys, maxListedNames, len(keys))
}

// obstacleVerdictMessage says what to do about the clusters of the current wave that have an
// obstacle.
func (e *evaluation) obstacleVerdictMessage(reason, wave string) string {
	remedy := map[string]string{
		v1alpha1.ReasonLabelMissing:  "set the labels of the MemberClusters (%s) that spec.overrides name",
		v1alpha1.ReasonSourceInvalid: "correct spec.overrides for these clusters (%s)",
		v1alpha1.ReasonFieldsUnknown: "upgrade the agents (%s)",
	}[reason]
	names, n := e.listClusterNames(func(c *placedCluster) bool {
		return int(c.wave) == e.currentWave && c.state == v1alpha1.ClusterToApply && c.obstacle == reason
	})
	return fmt.Sprintf("%s in wave %s cannot start, and later waves wait for that: "+remedy+", or add these clusters to spec.placement.excludedClusters", pluralClusters(n), wave, names)
}

// firstObstacle returns the obstacle of the first cluster to apply that has one.
func (e *evaluation) firstObstacle() string {
	for i := range e.placed {
		if c := &e.placed[i]; c.state == v1alpha1.ClusterToApply && c.obstacle != "" {
			return c.obstacle
		}
	}
	return ""
}

// setOverridesApplied sets whether every placed cluster, whatever its state, has a spec that is
// valid; err says why the overrides cannot be read.
func (e *evaluation) setOverridesApplied(err error) {
	if len(e.Image.Spec.Overrides) == 0 {
		meta.RemoveStatusCondition(&e.status.Conditions, v1alpha1.ConditionOverridesApplied)
		return
	}
	c := metav1.Condition{
		Type: v1alpha1.ConditionOverridesApplied, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonOverridesApplied, Message: "every placed cluster has a valid spec",
		ObservedGeneration: e.Image.Generation, LastTransitionTime: storedtime.Truncate(e.Now),
	}
	refuse := func(reason, message string) { c.Status, c.Reason, c.Message = metav1.ConditionFalse, reason, message }
	if err != nil {
		refuse(v1alpha1.ReasonSelectorInvalid, oneLine(err)+". Correct it: until then no cluster starts and plans stay as they are")
	} else {
		for _, reason := range []string{v1alpha1.ReasonLabelMissing, v1alpha1.ReasonSourceInvalid} {
			first := slices.IndexFunc(e.placed, func(c placedCluster) bool { return c.obstacle == reason })
			if first < 0 {
				continue
			}
			names, n := e.listClusterNames(func(c *placedCluster) bool { return c.obstacle == reason })
			refuse(reason, fmt.Sprintf("%s (%s) cannot begin, and keep what they have; in %s, %s", pluralClusters(n), names, e.placed[first].Name, e.placed[first].obstacleMessage()))
			break
		}
	}
	c.Message = v1alpha1.SanitizeText(c.Message, maxStatusLength)
	meta.SetStatusCondition(&e.status.Conditions, c)
}
