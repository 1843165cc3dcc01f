//go:build linux

package chart_test

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/health"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/process"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// helmCluster is a control plane that the helm command installs into.
type helmCluster struct {
	client.Client
	plane        *controlplane.ControlPlane
	agentProgram string
}

func startHelmCluster(t *testing.T) *helmCluster {
	t.Helper()
	plane, err := controlplane.Start(t.Context(), controlplane.Options{Name: "helm", ControllerManager: true})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, plane.Stop()) })
	c, err := client.New(plane.Config(), client.Options{Scheme: adminClient.Scheme()})
	require.NoError(t, err)
	programs, err := binaries.Ensure(t.Context(), binaries.Helm)
	require.NoError(t, err)
	return &helmCluster{c, plane, programs[binaries.Helm]}
}

func (s *helmCluster) runHelm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), s.agentProgram, append(args, "--kubeconfig", s.plane.Kubeconfig())...).CombinedOutput()
	return string(output), err
}

func (s *helmCluster) requireHelm(t *testing.T, args ...string) {
	t.Helper()
	output, err := s.runHelm(t, args...)
	require.NoError(t, err, "%s", output)
}

func (s *helmCluster) objectExists(t *testing.T, apiVersion, kind, namespace, name string) bool {
	t.Helper()
	object := &unstructured.Unstructured{}
	object.SetAPIVersion(apiVersion)
	object.SetKind(kind)
	err := s.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, object)
	require.NoError(t, client.IgnoreNotFound(err))
	return !apierrors.IsNotFound(err)
}

func chartPath(t *testing.T, path string) string {
	t.Helper()
	directory, err := filepath.Abs(filepath.Join("..", "..", "..", path))
	require.NoError(t, err)
	return directory
}

// TestHelmLifecycle installs the previous release, upgrades it without a loss, uninstalls it,
// which leaves the images, and installs it again, which adopts them.
func TestHelmLifecycle(t *testing.T) {
	testenv.RunInTurn(t, 2)
	s := startHelmCluster(t)
	namespace := []string{"--namespace", program.AgentNamespace}
	run := func(args ...string) { t.Helper(); s.requireHelm(t, append(args, namespace...)...) }

	s.installPreviousRelease(t, "ot-agent", "pelotech.ot_vmdiskimages.yaml", "prune")
	s.installPreviousRelease(t, "ot-hub", "pelotech.ot_memberclusters.yaml", "transfers", hubBesideAgentArgs...)
	left := s.storePreviousObjects(t)
	mine := newImage(t, nil)
	mine.SetNamespace(program.AgentNamespace)
	require.NoError(t, s.Create(t.Context(), mine))
	policy := &corev1.ConfigMap{}
	require.NoError(t, s.Get(t.Context(), client.ObjectKey{Namespace: "sync-operator", Name: "sync-operator-policy"}, policy))
	policy.Data["stallTimeout"], policy.Data["concurrency"], policy.Data["attemptTimeout"] = "7m", "5", "2h"
	policy.Data["maxPriority"] = "high" // invalid: nothing refused it then, and no upgrade must stop at it
	delete(policy.Data, "retryLimit")
	require.NoError(t, s.Update(t.Context(), policy))
	edited := maps.Clone(policy.Data)

	// Programs that are newer than their CRDs exit: they would lose fields that they write.
	ahead, err := program.StartAgent(t.Context(), s.plane, program.Options{})
	require.NoError(t, err)
	hubAhead, err := program.StartHub(t.Context(), s.plane, program.Options{})
	require.NoError(t, err)
	requireExited(t, ahead.Process, "ot-agent: the CustomResourceDefinitions of pelotech.ot/v1alpha1 are older than this program",
		"would drop fields that it writes: ", "VMDiskImage.spec.architecture", ". Apply those of its release")
	requireExited(t, hubAhead.Process, "ot-hub: the CustomResourceDefinitions of pelotech.ot/v1alpha1 are older than this program",
		"would drop fields that it writes: ", "FleetDiskImage.spec.retry", ". Apply those of its release")

	s.upgradeAsDocumented(t)
	s.requireKept(t, left)
	kept := &v1alpha1.VMDiskImage{}
	require.NoError(t, s.Get(t.Context(), client.ObjectKeyFromObject(mine), kept))
	assert.Equal(t, mine.GetUID(), kept.UID)
	require.NoError(t, s.Get(t.Context(), client.ObjectKeyFromObject(policy), policy))
	assert.Equal(t, edited, policy.Data, "keys that people have added, changed, removed")

	run("upgrade", "ot-agent", chartPath(t, agentChart), "--reset-then-reuse-values", "--set", "replicas=1",
		"--set", "hub.serviceAccount.create=true,metrics.readers[0].kind=ServiceAccount,metrics.readers[0].name=ot-hub,metrics.readers[0].namespace="+program.AgentNamespace)
	s.requireMetricsAuthorization(t)
	changed := append([]string{"upgrade", "ot-agent", chartPath(t, agentChart), "--set-string", "policy.data.concurrency=2"}, namespace...)
	said, err := s.runHelm(t, changed...)
	require.Error(t, err, "a conflict with the edited key")
	assert.Regexp(t, `conflict with "chart.test" .*\.data\.concurrency`, said)
	s.requireMissingRightsReported(t, func() { s.requireHelm(t, append(changed, "--force-conflicts")...) })
	require.NoError(t, s.Get(t.Context(), client.ObjectKeyFromObject(policy), policy))
	assert.Equal(t, "2", policy.Data["concurrency"], "who insists")

	survive := s.createVMWithDisk(t)
	run("uninstall", "ot-agent")
	for _, object := range survive {
		require.NoError(t, s.Get(t.Context(), client.ObjectKeyFromObject(object), object), "%T must outlive the chart", object)
		assert.Nil(t, object.GetDeletionTimestamp(), "%T", object)
	}
	assert.False(t, s.objectExists(t, "apps/v1", "Deployment", program.AgentNamespace, "ot-agent"))
	assert.False(t, s.objectExists(t, "rbac.authorization.k8s.io/v1", "ClusterRole", "", "ot-agent"))
	assert.True(t, s.objectExists(t, "v1", "Namespace", "", "sync-operator"))
	assert.True(t, s.objectExists(t, "pelotech.ot/v1alpha1", "VMDiskImage", program.AgentNamespace, mine.GetName()), "images must outlive the chart")

	run("install", "ot-agent", chartPath(t, agentChart))
	assert.True(t, s.objectExists(t, "apps/v1", "Deployment", program.AgentNamespace, "ot-agent"), "an installation adopts what was kept")
	require.NoError(t, s.Get(t.Context(), client.ObjectKeyFromObject(policy), policy))
	delete(edited, "concurrency") // what the chart set last
	assert.Equal(t, edited, policy.Data, "the edited policy")

	t.Run("hub", func(t *testing.T) { testHubLifecycle(t, s) })
	t.Run("removal", func(t *testing.T) {
		removeHubAndAgent(t, s)
		removeAgentOnly(t, s)
	})
}

// createVMWithDisk creates a VM, its children and an image's storage with the agent's labels.
func (s *helmCluster) createVMWithDisk(t *testing.T) []client.Object {
	t.Helper()
	require.NoError(t, s.Create(t.Context(), newStandInCRD("kubevirt.io", "v1", "VirtualMachine", "virtualmachines")))
	s.createWorkspace(t)
	ours := newVM(t, nil)
	ours.SetNamespace(workspace)
	require.NoError(t, s.Create(t.Context(), ours))
	kubeVirtVM := &unstructured.Unstructured{}
	kubeVirtVM.SetAPIVersion("kubevirt.io/v1")
	kubeVirtVM.SetKind("VirtualMachine")
	objects := []client.Object{kubeVirtVM}
	for _, name := range []string{"machine-root", "image"} {
		claim := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		}}
		claim.SetName(name)
		objects = append(objects, claim)
	}
	kubeVirtVM.SetName("machine")
	for _, object := range objects {
		object.SetNamespace(program.AgentNamespace) // which removal deletes
		object.SetLabels(map[string]string{v1alpha1.LabelMachineUID: string(ours.GetUID())})
		require.EventuallyWithT(t, func(c *assert.CollectT) { require.NoError(c, s.Create(t.Context(), object)) }, testenv.Patience, 100*time.Millisecond)
	}
	return append(objects, ours)
}

// createWorkspace creates a namespace for machines: the agent's has none.
func (s *helmCluster) createWorkspace(t *testing.T) {
	t.Helper()
	require.NoError(t, client.IgnoreAlreadyExists(s.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: workspace}})))
}

// requireMetricsAuthorization wants the metrics to be served to the accounts that the chart
// binds, and to no other.
func (s *helmCluster) requireMetricsAuthorization(t *testing.T) {
	t.Helper()
	given := t.TempDir()
	first := writeCertificate(t, given)
	current, err := program.StartAgent(t.Context(), s.plane, program.Options{LeaseDuration: program.StableLease, Args: []string{"--metrics-secure=true", "--metrics-cert-dir=" + given}})
	require.NoError(t, err)
	t.Cleanup(current.Kill)
	url := strings.Replace(current.MetricsURL, "http://", "https://", 1)
	token := filepath.Join(t.TempDir(), "token")
	as := func(account string) error {
		cfg, err := s.plane.ServiceAccountConfig(t.Context(), program.AgentNamespace, account)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(token, []byte(cfg.BearerToken), 0o600))
		return health.CheckURL(t.Context(), url, token)
	}
	require.Eventually(t, func() bool { return as("ot-hub") == nil }, testenv.Patience, 100*time.Millisecond)
	require.ErrorContains(t, as("ot-agent"), "403 Forbidden")
	require.ErrorContains(t, health.CheckURL(t.Context(), url, token+"none"), "401 Unauthorized")
	assert.Equal(t, first, servedCertificate(t, url))
	next := writeCertificate(t, given)
	require.Eventually(t, func() bool { return servedCertificate(t, url) == next }, testenv.Patience, 100*time.Millisecond, "the replaced certificate is still served")
	current.Kill()
}

// hubBesideAgentArgs are helm's arguments for a hub in the cluster of an agent.
var hubBesideAgentArgs = []string{"--set", "crds.mailbox=false,policy.create=false,policy.createNamespace=false"}

// requireExited waits until a program has exited and checks the last line of its log, which a
// failed Pod shows.
func requireExited(t *testing.T, p *process.Process, words ...string) {
	t.Helper()
	t.Cleanup(p.Kill)
	select {
	case <-p.Done():
	case <-time.After(testenv.Patience):
		require.Fail(t, "the program still runs", "want %v", words)
	}
	said, err := os.ReadFile(p.LogFile())
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(said)), "\n")
	for _, says := range words {
		assert.Contains(t, lines[len(lines)-1], says)
	}
}

// testHubLifecycle does the same with a hub beside the agent.
func testHubLifecycle(t *testing.T, s *helmCluster) {
	run := func(args ...string) { t.Helper(); s.requireHelm(t, append(args, "--namespace", hubNamespace)...) }
	member := &v1alpha1.MemberCluster{}
	member.Name = "frankfurt"
	member.Spec.Connection.KubeconfigSecretRef = &v1alpha1.SecretKeyRef{Name: "frankfurt"}
	require.NoError(t, s.Create(t.Context(), member))
	s.removeRights(t, "ot-hub", "memberlinks/status")
	denied, err := program.StartHub(t.Context(), s.plane, program.Options{})
	require.NoError(t, err)
	requireExited(t, denied.Process, "ot-hub: its account lacks permissions: update", "update memberlinks.pelotech.ot/status", "run `helm upgrade` ot-hub with the chart of this version")
	run("uninstall", "ot-hub")
	assert.False(t, s.objectExists(t, "apps/v1", "Deployment", hubNamespace, "ot-hub"))
	kept := &v1alpha1.MemberCluster{}
	require.NoError(t, s.Get(t.Context(), client.ObjectKeyFromObject(member), kept))
	assert.Equal(t, member.UID, kept.UID, "members must outlive the chart")
	run(append([]string{"install", "ot-hub", chartPath(t, hubChart)}, hubBesideAgentArgs...)...)
}

var (
	removalPattern      = regexp.MustCompile("(?s)\nTo remove all of it.*?```console\n(.*?)```")
	notesRemovalPattern = regexp.MustCompile(`\nTo remove them, while the agent runs:\n((?:  .*\n?)+)`)
)

// removalCommands returns the commands of a chart's page that remove all of it.
func removalCommands(t *testing.T, name string) []string {
	t.Helper()
	text, err := os.ReadFile(chartPath(t, filepath.Join("charts", name, "README.md")))
	require.NoError(t, err)
	found := removalPattern.FindStringSubmatch(string(text))
	require.NotNil(t, found, name)
	return strings.Split(strings.TrimSpace(found[1]), "\n")
}

// runShell runs a command in a shell with helm, kubectl and a kubeconfig.
func (s *helmCluster) runShell(t *testing.T, command string) {
	t.Helper()
	programs, err := binaries.Ensure(t.Context(), binaries.Helm, binaries.Kubectl)
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", command)
	cmd.Env = append(os.Environ(), programs.PathVariable(), "KUBECONFIG="+s.plane.Kubeconfig())
	output, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s\n%s", command, output)
}

// removeHubAndAgent removes a hub whose own cluster is a member, and its agent, by the commands
// of their pages. Nothing may be left.
func removeHubAndAgent(t *testing.T, s *helmCluster) {
	require.NoError(t, s.Create(t.Context(), newStandInCRD("cdi.kubevirt.io", "v1beta1", "DataVolume", "datavolumes")))
	require.NoError(t, program.InstallClusterCRD(t.Context(), s.plane.Config()))
	syncs, err := program.StartAgent(t.Context(), s.plane, program.Options{LeaseDuration: program.StableLease})
	require.NoError(t, err)
	t.Cleanup(syncs.Kill)
	plans, err := program.StartHub(t.Context(), s.plane, program.Options{LeaseDuration: program.LongLease})
	require.NoError(t, err)
	t.Cleanup(plans.Kill)
	require.NoError(t, program.CreateMemberSecret(t.Context(), s, "own", s.plane.Config()))
	rollout := newFleetImage(t, map[string]any{"placement": map[string]any{"clusterNames": []any{"own"}}, "rollout": nil})
	require.NoError(t, s.Create(t.Context(), rollout))
	require.NoError(t, s.Create(t.Context(), newPruneReport(t, nil)))
	planned := client.ObjectKey{Namespace: "vmdi-farm", Name: "ubuntu-lts-2.1.0"}
	require.NoError(t, s.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: planned.Namespace}}))
	require.Eventually(t, func() bool {
		image := &v1alpha1.VMDiskImage{}
		return s.Get(t.Context(), planned, image) == nil && len(image.Finalizers) > 0
	}, testenv.Patience, 100*time.Millisecond, "the agent takes up what the hub has planned")

	// With both in one cluster, the hub's commands stop before they remove what the agent
	// needs, and continue when the agent is gone.
	var last []string
	for _, command := range removalCommands(t, "ot-hub") {
		if strings.Contains(command, "not where ot-agent runs too") || len(last) > 0 {
			last = append(last, command)
			continue
		}
		s.runShell(t, command)
	}
	require.Len(t, last, 3, "CRDs and both namespaces")
	assert.False(t, s.objectExists(t, "pelotech.ot/v1alpha1", "ClusterPlan", program.AgentNamespace, v1alpha1.MailboxName), "the plan is deleted with its member")
	for _, command := range removalCommands(t, "ot-agent") {
		if !strings.Contains(command, "not where ot-hub runs too") && !strings.Contains(command, "nor this") {
			s.runShell(t, command)
		}
	}
	for _, command := range last {
		s.runShell(t, command)
	}
	s.requireNothingLeft(t)
}

// removeAgentOnly removes an agent in a cluster without a hub: images and VMs by the chart's
// notes, and then everything by its page.
func removeAgentOnly(t *testing.T, s *helmCluster) {
	s.requireHelm(t, "install", "ot-agent", chartPath(t, agentChart), "--namespace", program.AgentNamespace, "--create-namespace")
	noted := notesRemovalPattern.FindSubmatch(s.queryHelm(t, "get", "notes", "ot-agent", "--namespace", program.AgentNamespace))
	require.NotNil(t, noted, "the notes say how to remove images and machines")
	syncs, err := program.StartAgent(t.Context(), s.plane, program.Options{LeaseDuration: program.StableLease})
	require.NoError(t, err)
	t.Cleanup(syncs.Kill)
	s.createWorkspace(t)
	takenUp := func() []*unstructured.Unstructured {
		t.Helper()
		objects := []*unstructured.Unstructured{newImage(t, nil), newVM(t, nil)}
		for _, object := range objects {
			object.SetNamespace(workspace)
			require.NoError(t, s.Create(t.Context(), object))
			require.Eventually(t, func() bool {
				err := s.Get(t.Context(), client.ObjectKeyFromObject(object), object)
				phase, _, _ := unstructured.NestedString(object.Object, "status", "phase")
				return err == nil && phase != ""
			}, testenv.Patience, 100*time.Millisecond, "the agent takes up %s", object.GetName())
		}
		return objects
	}
	objects := takenUp()
	s.runShell(t, string(noted[1]))
	for _, object := range objects {
		assert.True(t, apierrors.IsNotFound(s.Get(t.Context(), client.ObjectKeyFromObject(object), object)), "%s is left", object.GetName())
	}
	takenUp()
	for _, command := range removalCommands(t, "ot-agent") {
		s.runShell(t, command)
	}
	s.requireNothingLeft(t)
}

// requireNothingLeft checks that the cluster has neither CRDs nor objects of charts and programs.
func (s *helmCluster) requireNothingLeft(t *testing.T) {
	t.Helper()
	assert.Empty(t, s.servedKinds(t))
	for _, name := range []string{program.AgentNamespace, program.HubNamespace, program.PolicyNamespace, v1alpha1.MemberNamespacePrefix + "own"} {
		err := s.Get(t.Context(), client.ObjectKey{Name: name}, &corev1.Namespace{})
		assert.True(t, apierrors.IsNotFound(err), "namespace %s: %v", name, err)
	}
	mutating := testenv.MutatingAdmissionAPI(t, s.plane.Config())
	for kind, apiVersion := range map[string]string{
		"ClusterRole": "rbac.authorization.k8s.io/v1", "ClusterRoleBinding": "rbac.authorization.k8s.io/v1", "Role": "rbac.authorization.k8s.io/v1", "RoleBinding": "rbac.authorization.k8s.io/v1",
		"ValidatingAdmissionPolicy": "admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding": "admissionregistration.k8s.io/v1",
		"MutatingAdmissionPolicy": mutating, "MutatingAdmissionPolicyBinding": mutating,
		"ConfigMap": "v1", "Secret": "v1", "ServiceAccount": "v1", "Service": "v1", "PersistentVolumeClaim": "v1",
		"Deployment": "apps/v1", "DataVolume": "cdi.kubevirt.io/v1beta1",
	} {
		if apiVersion == "" {
			continue
		}
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion(apiVersion)
		list.SetKind(kind + "List")
		require.NoError(t, s.List(t.Context(), list))
		for _, object := range list.Items {
			assert.False(t, isOurs(&object), "%s %s", kind, client.ObjectKeyFromObject(&object))
		}
	}
}

// isOurs reports whether a chart or a program has created an object.
func isOurs(o client.Object) bool {
	if o.GetLabels()["app.kubernetes.io/part-of"] == "ot-fleet" {
		return true
	}
	for _, of := range []map[string]string{o.GetLabels(), o.GetAnnotations()} {
		for key := range of {
			if strings.HasPrefix(key, "pelotech.ot/") {
				return true
			}
		}
	}
	return false
}
