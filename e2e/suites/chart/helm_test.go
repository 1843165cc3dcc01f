//go:build linux

package chart_test

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
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

// helmCluster is a control plane that helm installs into, as users do.
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

// TestHelmLifecycle takes the way of an agent's users: the release before, an upgrade that loses
// nothing, an end that leaves images, a beginning that takes them up.
func TestHelmLifecycle(t *testing.T) {
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
	delete(policy.Data, "retryLimit")
	require.NoError(t, s.Update(t.Context(), policy))
	edited := maps.Clone(policy.Data)

	// Programs that are ahead of their kinds would lose what they write. They say so.
	ahead, err := program.StartAgent(t.Context(), s.plane, program.Options{})
	require.NoError(t, err)
	hubAhead, err := program.StartHub(t.Context(), s.plane, program.Options{})
	require.NoError(t, err)
	requireExited(t, ahead.Process, "ot-agent: the CustomResourceDefinitions of pelotech.ot/v1alpha1 are older than this program",
		"would drop fields that it writes: ", "VMDiskImage.status.prune", ". Apply those of its release")
	requireExited(t, hubAhead.Process, "ot-hub: the CustomResourceDefinitions of pelotech.ot/v1alpha1 are older than this program",
		"would drop fields that it writes: ", "MemberCluster.status.transfers", ". Apply those of its release")

	s.upgradeAsDocumented(t)
	s.requireKept(t, left)
	kept := &v1alpha1.VMDiskImage{}
	require.NoError(t, s.Get(t.Context(), client.ObjectKeyFromObject(mine), kept))
	assert.Equal(t, mine.GetUID(), kept.UID)
	require.NoError(t, s.Get(t.Context(), client.ObjectKeyFromObject(policy), policy))
	assert.Equal(t, edited, policy.Data, "what people have added, changed, removed")

	run("upgrade", "ot-agent", chartPath(t, agentChart), "--reset-then-reuse-values", "--set", "replicas=1",
		"--set", "hub.serviceAccount.create=true,metrics.readers[0].kind=ServiceAccount,metrics.readers[0].name=ot-hub,metrics.readers[0].namespace="+program.AgentNamespace)
	s.requireMetricsAuthorization(t)
	changed := append([]string{"upgrade", "ot-agent", chartPath(t, agentChart), "--set-string", "policy.data.concurrency=2"}, namespace...)
	said, err := s.runHelm(t, changed...)
	require.Error(t, err, "both have changed it")
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
	assert.True(t, s.objectExists(t, "apps/v1", "Deployment", program.AgentNamespace, "ot-agent"), "an installation takes over what was kept")
	require.NoError(t, s.Get(t.Context(), client.ObjectKeyFromObject(policy), policy))
	edited["concurrency"] = "3"
	assert.Equal(t, edited, policy.Data, "and the policy as it was edited")

	t.Run("hub", func(t *testing.T) { testHubLifecycle(t, s) })
	t.Run("removal", func(t *testing.T) {
		removeHubAndAgent(t, s)
		removeAgentOnly(t, s)
	})
}

// createVMWithDisk is a machine with what the agent makes for it, and an image's storage,
// labelled as the agent labels them.
func (s *helmCluster) createVMWithDisk(t *testing.T) []client.Object {
	t.Helper()
	require.NoError(t, s.Create(t.Context(), newStandInCRD("kubevirt.io", "v1", "VirtualMachine", "virtualmachines")))
	ours := newVM(t, nil)
	ours.SetNamespace(program.AgentNamespace)
	require.NoError(t, s.Create(t.Context(), ours))
	theirs := &unstructured.Unstructured{}
	theirs.SetAPIVersion("kubevirt.io/v1")
	theirs.SetKind("VirtualMachine")
	objects := []client.Object{theirs}
	for _, name := range []string{"machine-root", "image"} {
		claim := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		}}
		claim.SetName(name)
		objects = append(objects, claim)
	}
	theirs.SetName("machine")
	for _, object := range objects {
		object.SetNamespace(program.AgentNamespace)
		object.SetLabels(map[string]string{v1alpha1.LabelMachineUID: string(ours.GetUID())})
		require.EventuallyWithT(t, func(c *assert.CollectT) { require.NoError(c, s.Create(t.Context(), object)) }, testenv.Patience, 100*time.Millisecond)
	}
	return append(objects, ours)
}

// requireMetricsAuthorization has an agent tell its metrics to whom the chart binds to them, and to
// nobody else.
func (s *helmCluster) requireMetricsAuthorization(t *testing.T) {
	t.Helper()
	given := t.TempDir()
	first := writeCertificate(t, given)
	current, err := program.StartAgent(t.Context(), s.plane, program.Options{LeaseDuration: 15 * time.Second, Args: []string{"--metrics-secure=true", "--metrics-cert-dir=" + given}})
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
	require.Eventually(t, func() bool { return servedCertificate(t, url) == next }, testenv.Patience, 100*time.Millisecond, "it goes on with a certificate that was replaced")
	current.Kill()
}

// hubBesideAgentArgs are the settings of a hub that shares a cluster with an agent.
var hubBesideAgentArgs = []string{"--set", "crds.mailbox=false,policy.create=false,policy.createNamespace=false"}

// requireExited has a program have ended, with words that are the last in its log: what a
// Pod that has ended shows.
func requireExited(t *testing.T, p *process.Process, words ...string) {
	t.Helper()
	t.Cleanup(p.Kill)
	select {
	case <-p.Done():
	case <-time.After(testenv.Patience):
		require.Fail(t, "it runs on", "%v", words)
	}
	said, err := os.ReadFile(p.LogFile())
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(said)), "\n")
	for _, says := range words {
		assert.Contains(t, lines[len(lines)-1], says)
	}
}

// testHubLifecycle takes the same way with a hub, beside the agent.
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
	assert.Equal(t, member.UID, kept.UID, "members outlive the chart")
	run(append([]string{"install", "ot-hub", chartPath(t, hubChart)}, hubBesideAgentArgs...)...)
}
