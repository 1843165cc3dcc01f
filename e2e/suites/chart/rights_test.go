//go:build linux

package chart_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/chart"
	"github.com/pelotech/ot-fleet/e2e/harness/process"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/rbaccheck"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// policyNamespace is the namespace of the policy in the charts' values.
const policyNamespace = "sync-operator"

// allowedRule allows verbs on resources, both separated by spaces, of a group, in one namespace
// and by one name where they are given.
type allowedRule struct{ group, resources, verbs, namespace, object string }

type allowedRules []allowedRule

func (all allowedRules) allows(r rbaccheck.Request) bool {
	return slices.ContainsFunc(all, func(a allowedRule) bool {
		return a.group == r.Group && slices.Contains(strings.Fields(a.resources), r.Resource) && slices.Contains(strings.Fields(a.verbs), r.Verb) &&
			(a.namespace == "" || a.namespace == r.Namespace) && (a.object == "" || a.object == r.Object)
	})
}

// The rights of the charts' ServiceAccounts, repeated here on purpose: a new right has to be
// written in two places.
var (
	agentRules = allowedRules{
		{"", "configmaps namespaces", "get", "", ""},
		{"", "persistentvolumeclaims", "get list watch patch delete", "", ""},
		{"", "events", "list", "", ""},
		{"", "pods", "list watch", "", ""},
		{"", "limitranges", "list", "", ""},
		{"", "resourcequotas", "list", "", ""},
		{"", "secrets", "create update delete", "", ""},
		{"admissionregistration.k8s.io", "mutatingadmissionpolicies mutatingadmissionpolicybindings", "get", "", "ot-agent-importers"},
		{"authentication.k8s.io", "tokenreviews", "create", "", ""},
		{"authorization.k8s.io", "subjectaccessreviews", "create", "", ""},
		{"cdi.kubevirt.io", "cdiconfigs", "get", "", ""},
		{"cdi.kubevirt.io", "storageprofiles", "list", "", ""},
		{"cdi.kubevirt.io", "datasources", "get list watch create patch delete", "", ""},
		{"cdi.kubevirt.io", "datavolumes", "get list watch create patch delete", "", ""},
		{"cdi.kubevirt.io", "datavolumes/source", "create", "", ""},
		{"events.k8s.io", "events", "create patch", "", ""},
		{"k8s.cni.cncf.io", "network-attachment-definitions", "get", "", ""},
		{"kubevirt.io", "virtualmachines", "get list watch create patch delete", "", ""},
		{"networking.k8s.io", "servicecidrs", "list", "", ""},
		{"pelotech.ot", "virtualmachines", "get list watch", "", ""},
		{"pelotech.ot", "virtualmachines/status vmdiskimages/status", "update", "", ""},
		{"pelotech.ot", "vmdiskimages", "get list watch create patch delete", "", ""},
		{"snapshot.storage.k8s.io", "volumesnapshotclasses", "get", "", ""},
		{"snapshot.storage.k8s.io", "volumesnapshots", "get list watch create delete", "", ""},
		{"storage.k8s.io", "csidrivers csistoragecapacities", "list", "", ""},
		{"storage.k8s.io", "storageclasses", "get list watch", "", ""},

		{"", "events", "create patch", agentNamespace, ""},
		{"", "secrets", "get list watch update", agentNamespace, "ot-hub-credential"},
		{"", "secrets", "get list watch", agentNamespace, "ot-hub-join"},
		{"coordination.k8s.io", "leases", "get create update watch", agentNamespace, ""},
		{"pelotech.ot", "clusterplans clusterreports transfergrants", "get list watch create update delete", agentNamespace, ""},
		{"pelotech.ot", "syncledgers", "get list watch create", agentNamespace, ""},
		{"pelotech.ot", "syncledgers/status", "update", agentNamespace, ""},
		{"", "configmaps", "list watch", policyNamespace, ""},
	}

	hubRules = allowedRules{
		{"", "namespaces", "get list watch create delete", "", ""},
		{"", "resourcequotas", "create", "", ""},
		{"", "resourcequotas", "get", "", "ot-member"},
		{"", "serviceaccounts", "create", "", ""},
		{"", "serviceaccounts", "get delete", "", "ot-member-agent"},
		{"", "serviceaccounts", "get delete", "", "ot-member-join"},
		{"", "serviceaccounts/token", "create", "", "ot-member-agent"},
		{"", "serviceaccounts/token", "create", "", "ot-member-join"},
		{"admissionregistration.k8s.io", "validatingadmissionpolicies validatingadmissionpolicybindings", "get", "", "ot-hub-account"},
		{"admissionregistration.k8s.io", "validatingadmissionpolicies validatingadmissionpolicybindings", "get", "", "ot-hub-approvals"},
		{"admissionregistration.k8s.io", "validatingadmissionpolicies validatingadmissionpolicybindings", "get", "", "ot-hub-prunes"},
		{"authentication.k8s.io", "tokenreviews", "create", "", ""},
		{"authorization.k8s.io", "subjectaccessreviews", "create", "", ""},
		{"coordination.k8s.io", "leases", "create", "", ""},
		{"coordination.k8s.io", "leases", "get", "", "ot-agent"},
		{"events.k8s.io", "events", "create patch", "", ""},
		{"pelotech.ot", "clusterjoins", "get list watch delete", "", ""},
		{"pelotech.ot", "clusterjoins/status fleetdiskimages/status imageprunes/status memberclusters/status memberlinks/status prunereports/status", "update", "", ""},
		{"pelotech.ot", "clusterplans clusterreports transfergrants", "get list watch create update delete", "", ""},
		{"pelotech.ot", "fleetdiskimages", "get list watch patch", "", ""},
		{"pelotech.ot", "imageprunes", "get list watch", "", ""},
		{"pelotech.ot", "memberclusters", "get list watch create update patch delete", "", ""},
		{"pelotech.ot", "memberlinks", "get list watch create update", "", ""},
		{"pelotech.ot", "prunereportpages", "get list create delete", "", ""},
		{"pelotech.ot", "prunereports", "get list watch create delete", "", ""},
		{"rbac.authorization.k8s.io", "clusterroles", "bind", "", "ot-hub-member-agent"},
		{"rbac.authorization.k8s.io", "clusterroles", "bind", "", "ot-hub-member-join"},
		{"rbac.authorization.k8s.io", "rolebindings", "create", "", ""},
		{"rbac.authorization.k8s.io", "rolebindings", "get delete", "", "ot-member-agent"},
		{"rbac.authorization.k8s.io", "rolebindings", "get delete", "", "ot-member-join"},

		{"", "configmaps", "get create update", hubNamespace, ""},
		{"", "events", "create patch", hubNamespace, ""},
		{"", "secrets", "get list watch create update delete", hubNamespace, ""},
		{"coordination.k8s.io", "leases", "get list create update delete watch", hubNamespace, ""},
		{"", "configmaps", "get list watch patch", policyNamespace, ""},
	}

	// Values of the hub's chart enable clusterAPIRules and installerRules.
	clusterAPIRules = allowedRules{
		{"", "secrets", "get", "", ""},
		{"cluster.x-k8s.io", "clusters", "get list watch", "", ""},
	}
	installerRules = allowedRules{{"", "configmaps", "list watch", hubNamespace, ""}}
)

// unservedResources returns allowed resources that the API server does not serve.
func (all allowedRules) unservedResources(served []rbaccheck.Resource) (unserved []rbaccheck.Resource) {
	for _, a := range all {
		for _, name := range strings.Fields(a.resources) {
			if !slices.ContainsFunc(served, func(r rbaccheck.Resource) bool { return r.GroupVersion.Group == a.group && r.Name == name }) {
				r := rbaccheck.Resource{APIResource: metav1.APIResource{Name: name}}
				r.GroupVersion.Group = a.group
				unserved = append(unserved, r)
			}
		}
	}
	return unserved
}

// TestServiceAccountRightsAreExactlyAsListed checks the charts' ServiceAccounts by their rules on
// all served resources, and tries every verb on this run's share of them.
func TestServiceAccountRightsAreExactlyAsListed(t *testing.T) {
	served, err := rbaccheck.ServedResources(serverConfig)
	require.NoError(t, err)
	require.Greater(t, len(served), 100)
	installHub := func(ctx context.Context, values map[string]any) error {
		given := maps.Clone(hubValuesBesideAgent)
		maps.Copy(given, values)
		return chart.Install(ctx, serverConfig, hubChart, "hub", hubNamespace, given)
	}
	t.Cleanup(func() {
		assert.NoError(t, installHub(context.Background(), nil), "restoring the hub's default values for other tests")
	})

	enabled := map[string]any{"enabled": true}
	for _, test := range []struct {
		name, account, namespace string
		hub                      map[string]any
		want                     allowedRules
	}{
		{"agent", "ot-agent", agentNamespace, nil, agentRules},
		{"hub", "ot-hub", hubNamespace, nil, hubRules},
		{"hub with Cluster API that installs agents", "ot-hub", hubNamespace, map[string]any{"clusterAPI": enabled, "installAgents": enabled},
			slices.Concat(hubRules, clusterAPIRules, installerRules)},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.NoError(t, installHub(t.Context(), test.hub))
			cfg, may := configFor(t, test.account), test.want.allows
			namespaces := []string{test.namespace, policyNamespace, "kube-system"}
			asked := slices.Concat(served, test.want.unservedResources(served))
			var ruled *rbaccheck.Result
			// The API server may not enforce the hub's new values at once.
			require.EventuallyWithT(t, func(c *assert.CollectT) {
				var err error
				ruled, err = rbaccheck.CheckRules(t.Context(), cfg, asked, append([]string{""}, namespaces...), nil, may)
				require.NoError(c, err)
				assert.Empty(c, ruled.Unexpected)
			}, policyPropagationTimeout, 100*time.Millisecond)

			share := testenv.SweepShare(served)
			answered, err := rbaccheck.CheckByRequest(t.Context(), cfg, share, namespaces, may)
			require.NoError(t, err)
			assert.Empty(t, answered.Unexpected)
			t.Logf("%d of %d questions about %d resources are denied, and %d of %d requests about %d were",
				ruled.Refusals, ruled.Attempts, len(asked), answered.Refusals, answered.Attempts, len(share))
		})
	}
}

// TestAgentUpdatesOnlyWhatItCreated writes with the rights of the agent's ClusterRole.
func TestAgentUpdatesOnlyWhatItCreated(t *testing.T) {
	agent := clientFor(t, "ot-agent")
	for kind, apiVersion := range map[string]string{"Secret": "v1", "VirtualMachine": "kubevirt.io/v1"} {
		nameFor := func(machine string) string {
			if kind == "Secret" {
				return machine + "-cloudinit"
			}
			return machine
		}
		object := func(machine, machineUID string) *unstructured.Unstructured {
			made := &unstructured.Unstructured{}
			made.SetAPIVersion(apiVersion)
			made.SetKind(kind)
			made.SetNamespace(imageNamespace)
			made.SetName(nameFor(machine))
			if machineUID != "" {
				made.SetOwnerReferences([]metav1.OwnerReference{{
					APIVersion: v1alpha1.GroupVersion.String(), Kind: "VirtualMachine", Name: machine, UID: types.UID(machineUID), Controller: ptr.To(true),
				}})
				made.SetLabels(map[string]string{v1alpha1.LabelMachineUID: machineUID})
			}
			return made
		}
		// The agent has no right to patch Secrets: it replaces them.
		apply := func(c client.Client, object *unstructured.Unstructured) error {
			if kind != "Secret" {
				return c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("ot-agent"), client.ForceOwnership)
			}
			if err := c.Update(t.Context(), object.DeepCopy()); !apierrors.IsNotFound(err) {
				return err
			}
			return c.Create(t.Context(), object)
		}
		strip := func(c client.Client, object *unstructured.Unstructured) error {
			if kind == "Secret" {
				return c.Update(t.Context(), object)
			}
			return c.Patch(t.Context(), object, newMergePatch(`{"metadata":{"labels":null}}`))
		}
		denies := func(name string) func(require.TestingT, error) {
			return func(t require.TestingT, err error) {
				require.ErrorContains(t, err, "denied request: "+kind+" images/"+nameFor(name)+" was not made for a VirtualMachine of pelotech.ot (it has no label pelotech.ot/machine-uid), "+
					"and the agent writes to no other: rename or delete it, or give the machine another name")
				assert.True(t, apierrors.IsForbidden(err), "%v", err)
			}
		}

		t.Run(kind, func(t *testing.T) {
			require.EventuallyWithT(t, func(c *assert.CollectT) {
				denies("new")(c, agent.Create(t.Context(), object("new", ""), client.DryRunAll))
			}, policyPropagationTimeout, 20*time.Millisecond)
			denies("new")(t, apply(agent, object("new", "")))

			awaitCreated(t, object("foreign", ""))
			denies("foreign")(t, apply(agent, object("foreign", "uid-1")))
			denies("foreign")(t, strip(agent, object("foreign", "")))

			require.NoError(t, apply(agent, object("ours", "uid-1")))
			require.NoError(t, apply(agent, object("ours", "uid-2")), "an object of a former VM of the same name")
			denies("ours")(t, strip(agent, object("ours", "")))
			require.NoError(t, adminClient.Patch(t.Context(), object("ours", ""), newMergePatch(`{"metadata":{"labels":null}}`)), "other users are not restricted")
			denies("ours")(t, apply(agent, object("ours", "uid-2")))
			require.NoError(t, adminClient.Delete(t.Context(), object("ours", "")))
		})
	}
}

// TestAgentDeletesOnlyWhatItCreated deletes with the rights of the agent's ClusterRole.
func TestAgentDeletesOnlyWhatItCreated(t *testing.T) {
	agent := clientFor(t, "ot-agent")
	createLedger(t, 1, "of-an-image")
	claim := map[string]any{"accessModes": []any{"ReadWriteOnce"}, "resources": map[string]any{"requests": map[string]any{"storage": "1Gi"}}}
	for kind, test := range map[string]struct {
		apiVersion    string
		spec          map[string]any
		wantOfMachine bool
		wantLacks     string
	}{
		"PersistentVolumeClaim": {"v1", claim, false, "pelotech.ot/image-uid"},
		"DataVolume":            {"cdi.kubevirt.io/v1beta1", map[string]any{}, true, "pelotech.ot/image-uid or pelotech.ot/machine-uid"},
		"DataSource":            {"cdi.kubevirt.io/v1beta1", map[string]any{}, false, "pelotech.ot/image-uid"},
		"VolumeSnapshot":        {"snapshot.storage.k8s.io/v1", map[string]any{}, false, "pelotech.ot/image-uid"},
	} {
		there := func(t *testing.T, name string, labels map[string]string) *unstructured.Unstructured {
			object := &unstructured.Unstructured{Object: map[string]any{"spec": test.spec}}
			object.SetAPIVersion(test.apiVersion)
			object.SetKind(kind)
			object.SetNamespace(imageNamespace)
			object.SetName(name)
			object.SetLabels(labels)
			awaitCreated(t, object)
			// No controller removes the finalizers of claims here.
			require.NoError(t, adminClient.Patch(t.Context(), object, newMergePatch(`{"metadata":{"finalizers":null}}`)))
			return object
		}
		denied := func(t require.TestingT, object *unstructured.Unstructured, err error) {
			require.ErrorContains(t, err, "denied request: "+kind+" images/"+object.GetName()+" was not made by the agent (it has no label "+test.wantLacks+"), "+
				"and the agent deletes no other: if it is to go, delete it with an account of your own")
			assert.True(t, apierrors.IsForbidden(err), "%v", err)
		}

		t.Run(kind, func(t *testing.T) {
			foreign := there(t, "foreign", map[string]string{"app": "database"})
			require.EventuallyWithT(t, func(c *assert.CollectT) {
				denied(c, foreign, agent.Delete(t.Context(), foreign, client.DryRunAll))
			}, policyPropagationTimeout, 20*time.Millisecond)
			bare := there(t, "bare", nil)
			denied(t, bare, agent.Delete(t.Context(), bare, client.PropagationPolicy(metav1.DeletePropagationForeground)))
			require.NoError(t, adminClient.Delete(t.Context(), foreign), "other users are not restricted")

			ofImage := there(t, "of-an-image", map[string]string{v1alpha1.LabelImageUID: "uid-1"})
			require.NoError(t, agent.Delete(t.Context(), ofImage, client.Preconditions{UID: ptr.To(ofImage.GetUID())}))
			// CDI fills such a claim in place of an image's, and copies no label to it.
			prime := there(t, "prime-0", map[string]string{"app": "containerized-data-importer"})
			keptBy := func(finalizers string) client.Patch {
				return newMergePatch(`{"metadata":{"finalizers":` + finalizers + `,"ownerReferences":[{"apiVersion":"v1","kind":"PersistentVolumeClaim","name":"of-an-image","uid":"uid-1"}]}}`)
			}
			require.NoError(t, adminClient.Patch(t.Context(), prime, keptBy(`["example.com/kept"]`)))
			denied(t, prime, agent.Delete(t.Context(), prime))
			require.NoError(t, adminClient.Delete(t.Context(), prime))
			again := agent.Delete(t.Context(), prime, client.PropagationPolicy(metav1.DeletePropagationForeground))
			if kind == "PersistentVolumeClaim" {
				require.NoError(t, again, "it is being deleted already")
			} else {
				denied(t, prime, again)
			}
			require.NoError(t, adminClient.Patch(t.Context(), prime, keptBy("null")))

			ofMachine := there(t, "of-a-machine", map[string]string{v1alpha1.LabelMachineUID: "uid-1"})
			err := agent.Delete(t.Context(), ofMachine)
			if test.wantOfMachine {
				require.NoError(t, err)
			} else {
				denied(t, ofMachine, err)
			}
		})
	}
}

// probeURL calls a health endpoint as the kubelet does.
func probeURL(url string) (int, string) {
	response, err := http.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	text, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(text)
}

// removeRights removes rights from a role, as a person or another version of the chart may.
func (s *helmCluster) removeRights(t *testing.T, role string, resources ...string) {
	t.Helper()
	bound := &rbacv1.ClusterRole{}
	require.NoError(t, s.Get(t.Context(), client.ObjectKey{Name: role}, bound))
	bound.Rules = slices.DeleteFunc(bound.Rules, func(r rbacv1.PolicyRule) bool {
		return slices.ContainsFunc(r.Resources, func(of string) bool { return slices.Contains(resources, of) })
	})
	require.NoError(t, s.Update(t.Context(), bound))
}

// requireMissingRightsReported removes rights of a running agent, and starts another one without
// them: both report which rights are missing, until an upgrade restores them.
func (s *helmCluster) requireMissingRightsReported(t *testing.T, upgrade func()) {
	t.Helper()
	port, err := process.FreePort()
	require.NoError(t, err)
	probes := fmt.Sprintf("127.0.0.1:%d", port)
	current, err := program.StartAgent(t.Context(), s.plane, program.Options{LeaseDuration: program.StableLease, Args: []string{"--health-probe-bind-address=" + probes}})
	require.NoError(t, err)
	t.Cleanup(current.Kill)
	t.Cleanup(func() {
		if t.Failed() {
			code, text := probeURL("http://" + probes + "/readyz")
			t.Logf("its probe: %d %s", code, text)
		}
	})
	eventually := func(holds func() bool, says string) {
		t.Helper()
		require.Eventually(t, holds, testenv.Patience, 50*time.Millisecond, says)
	}
	condition := func(reason string) func() bool {
		return func() bool {
			ledger := &v1alpha1.SyncLedger{}
			if s.Get(t.Context(), client.ObjectKey{Namespace: program.AgentNamespace, Name: v1alpha1.LedgerName}, ledger) != nil || ledger.Status == nil {
				return false
			}
			c := meta.FindStatusCondition(ledger.Status.Conditions, v1alpha1.ConditionRightsComplete)
			return c != nil && c.Reason == reason && (reason != "RightsMissing" || strings.Contains(c.Message, "update vmdiskimages.pelotech.ot/status"))
		}
	}
	eventually(func() bool { code, _ := probeURL("http://" + probes + "/readyz"); return code == http.StatusOK }, "it is not ready")
	// The ledger may have this from a former agent. Only a leader has filled its caches;
	// without a right it would time out and exit.
	early := newImage(t, nil)
	early.SetName("early")
	early.SetNamespace(program.AgentNamespace)
	require.NoError(t, s.Create(t.Context(), early))
	eventually(func() bool {
		return s.Get(t.Context(), client.ObjectKeyFromObject(early), early) == nil && len(early.GetFinalizers()) > 0
	}, "it does not take an image up")
	eventually(condition("RightsComplete"), "the ledger says nothing of rights")

	s.removeRights(t, "ot-agent", "vmdiskimages/status", "storageclasses")
	late := newImage(t, nil)
	late.SetName("late")
	late.SetNamespace(program.AgentNamespace)
	require.NoError(t, s.Create(t.Context(), late))
	eventually(func() bool { code, _ := probeURL("http://" + probes + "/readyz/rights"); return code != http.StatusOK }, "it goes on being ready")
	code, _ := probeURL("http://" + probes + "/readyz")
	assert.NotEqual(t, http.StatusOK, code)
	_, text := probeURL("http://" + probes + "/readyz/rights")
	assert.Contains(t, text, "its account lacks permissions: update virtualmachines.pelotech.ot/status; update vmdiskimages.pelotech.ot/status; get, list, watch storageclasses.storage.k8s.io. ")
	assert.Contains(t, text, "run `helm upgrade` ot-agent with the chart of this version")
	code, _ = probeURL("http://" + probes + "/healthz")
	assert.Equal(t, http.StatusOK, code, "a restart would not restore the right")
	eventually(condition("RightsMissing"), "the ledger does not say which rights are lacking")

	// The running agent does not write the last line of this log.
	next, err := program.StartAgent(t.Context(), s.plane, program.Options{Log: filepath.Join(t.TempDir(), "next.log")})
	require.NoError(t, err)
	requireExited(t, next.Process, "ot-agent: its account lacks permissions: update virtualmachines.pelotech.ot/status;")

	upgrade()
	eventually(func() bool { code, _ := probeURL("http://" + probes + "/readyz"); return code == http.StatusOK }, "it does not become ready again")
	eventually(condition("RightsComplete"), "the ledger goes on saying that rights are lacking")
	current.Kill()
}
