//go:build linux

package hostilemember_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// rewrittenPages of largePage are as many as one answer may have.
const rewrittenPages = 14

// largePage is a page of about as many bytes as the schema admits.
func largePage(version int) object {
	var images []object
	for n := range v1alpha1.MaxReportedImages {
		images = append(images, object{
			"namespace": "lab", "name": fmt.Sprintf("image-%d", n), "references": 2, "source": "https://" + strings.Repeat("s", 2500),
			"message": strings.Repeat("m", 1000) + fmt.Sprint(version), "holders": []string{strings.Repeat("a", 384), strings.Repeat("b", 384)},
		})
	}
	return object{"images": images}
}

// rewritePages has the report consist of so many large pages, all of them of another version.
func (c *scriptedCluster) rewritePages(count, version int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pages = nil
	for n := range count {
		name := fmt.Sprintf("page-%04b", n)
		c.storeLocked("clusterreports", object{
			"apiVersion": apiVersion, "kind": "ClusterReport", "metadata": object{"namespace": agentNamespace, "name": name},
			"clusterUID": c.uid, "sequence": version, "page": largePage(version),
		})
		c.pages = append(c.pages, object{"name": name, "sequence": version, "images": v1alpha1.MaxReportedImages})
	}
	c.reportLocked(c.objects["clusterplans"]["default"])
}

// removePages has the report be without pages.
func (c *scriptedCluster) removePages() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.objects["clusterreports"] {
		if name != v1alpha1.MailboxName {
			delete(c.objects["clusterreports"], name)
		}
	}
	c.pages = nil
}

// planPolicy returns the policy of the cluster's plan; nil for no plan.
func (c *scriptedCluster) planPolicy() object {
	c.mu.Lock()
	defer c.mu.Unlock()
	plan := c.objects["clusterplans"]["default"]
	if plan == nil {
		return nil
	}
	policy, _ := plan["spec"].(object)["policy"].(object)
	return policy
}

// The hub's etcd keeps what was overwritten for minutes, so a report that is rewritten without end is
// copied with a delay. Plans are not: the member follows the fleet's policy meanwhile.
func TestRewrittenReportIsCopiedLate(t *testing.T) {
	testenv.RunInTurn(t, 2)
	l := shared.lanes[0]
	ended := make(chan struct{})
	var waiting sync.WaitGroup
	stop := sync.OnceFunc(func() { close(ended); waiting.Wait() })
	t.Cleanup(stop)
	waiting.Go(func() {
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for version := 1; ; version++ {
			l.cluster.rewritePages(rewrittenPages, version)
			select {
			case <-ended:
				return
			case <-ticker.C:
			}
		}
	})
	late := &hostileCase{name: "it is rewritten without end", condition: v1alpha1.ConditionMailboxSynced, want: []string{"so it is copied with a delay"}}
	l.awaitNamed(t, late)

	const backoff = "7m0s"
	shared.SetPolicy(t, map[string]string{"retryBackoffDuration": backoff})
	require.True(t, testenv.AwaitCondition(t, func() bool { return l.cluster.planPolicy()["retryBackoffDuration"] == backoff }), "no plan comes")
	require.NoError(t, shared.Hub.ExitError())
	stop()
	l.cluster.removePages()
	l.restore(t)
	l.awaitRestored(t)
}
