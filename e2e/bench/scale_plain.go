//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/fakemember"
	"github.com/pelotech/ot-fleet/e2e/harness/process"
)

// plainName names the account, the namespace and the binary of the plain hub.
const plainName = "plain"

// plainReplica is a running plain hub.
type plainReplica struct {
	*process.Process
	url string
}

// plainState is the state that a plain replica serves.
type plainState struct {
	Owned map[string]bool
	Seen  int
	Took  latencies
}

func (p *plainReplica) get(ctx context.Context, path string) ([]byte, error) {
	return readURL(ctx, p.url+path)
}

// ReadMetrics returns its metrics as text.
func (p *plainReplica) ReadMetrics(ctx context.Context) (string, error) {
	text, err := p.get(ctx, "/metrics")
	return string(text), err
}

func (p *plainReplica) readState(ctx context.Context) (s plainState, err error) {
	text, err := p.get(ctx, "/state")
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(text, &s)
}

// plainSetup runs the plain hub with the members of a hubSetup.
type plainSetup struct {
	*hubSetup
	binary, kubeconfig string
	inMember           client.Client
	// of are the names of its members.
	of []string
	// reports: it watches reports instead of images.
	reports bool
}

func newPlainSetup(ctx context.Context, s *hubSetup, members []*fakemember.Member) (*plainSetup, error) {
	p := &plainSetup{hubSetup: s, binary: filepath.Join(s.plane.Dir(), plainName), kubeconfig: filepath.Join(s.plane.Dir(), plainName+".kubeconfig")}
	for _, m := range members {
		p.of = append(p.of, m.Name)
	}
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", p.binary, "github.com/pelotech/ot-fleet/e2e/bench/plain").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the plain hub: %w\n%s", err, out)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, rbacv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	onHub, err := client.New(s.plane.Config(), client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	if p.inMember, err = client.New(s.members.Config(), client.Options{Scheme: scheme}); err != nil {
		return nil, err
	}
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: plainName}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: plainName, Name: plainName}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: plainName}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: plainName, Name: plainName}},
		},
	} {
		if err := onHub.Create(ctx, object); err != nil {
			return nil, err
		}
	}
	cfg, err := s.plane.ServiceAccountConfig(ctx, plainName, plainName)
	if err != nil {
		return nil, err
	}
	return p, controlplane.WriteKubeconfig(cfg, p.kubeconfig)
}

// start starts replicas of the plain hub until count of them run, and waits until every member has an
// owner. It returns how long that took.
func (p *plainSetup) start(ctx context.Context, count int, of []string) (time.Duration, error) {
	since := time.Now()
	for n := len(p.replicas); n < count; n++ {
		var ports [2]int
		for i := range ports {
			var err error
			if ports[i], err = process.FreePort(); err != nil {
				return 0, err
			}
		}
		r := &replica{name: fmt.Sprintf("plain-%d", n), pprof: fmt.Sprintf("127.0.0.1:%d", ports[1])}
		address := fmt.Sprintf("127.0.0.1:%d", ports[0])
		started, err := process.Start(process.Options{
			Path: p.binary, LogFile: p.logPath(r.name),
			Args: []string{
				"--kubeconfig=" + p.kubeconfig, "--members-kubeconfig=" + p.members.Kubeconfig(), "--members=" + strings.Join(of, ","),
				"--name=" + r.name, "--reports=" + strconv.FormatBool(p.reports), "--metrics-bind-address=" + address, "--pprof-bind-address=" + r.pprof,
			},
		})
		if err != nil {
			return 0, err
		}
		r.running = &plainReplica{started, "http://" + address}
		p.replicas = append(p.replicas, r)
	}
	return p.awaitOwners(ctx, since, of)
}

// awaitOwners waits until every member has an owner and every replica has members.
func (p *plainSetup) awaitOwners(ctx context.Context, since time.Time, of []string) (time.Duration, error) {
	err := p.awaitCondition(ctx, 500*time.Millisecond, "the plain hub has all its members", func(ctx context.Context) (bool, error) {
		owned := 0
		for _, r := range p.replicas {
			state, err := r.running.(*plainReplica).readState(ctx)
			if err != nil {
				return false, nil // still starting
			}
			if len(state.Owned) == 0 && len(of) > 0 {
				return false, nil
			}
			owned += len(state.Owned)
		}
		return owned == len(of), nil
	})
	return time.Since(since), err
}

// countMembersPerReplica returns the numbers of members of the replicas, in ascending order.
func (p *plainSetup) countMembersPerReplica(ctx context.Context) ([]int, error) {
	var counts []int
	for _, r := range p.replicas {
		state, err := r.running.(*plainReplica).readState(ctx)
		if err != nil {
			return nil, err
		}
		counts = append(counts, len(state.Owned))
	}
	slices.Sort(counts)
	return counts, nil
}

// measureSeenChanges changes images and reads from the replicas how long they took to see it.
func (p *plainSetup) measureSeenChanges(ctx context.Context) (made int, took latencies, err error) {
	made, err = makeChanges(ctx, func(ctx context.Context, n int) error {
		img := plainImage(p.of[n%len(p.of)], n/len(p.of)%imagesPerMember)
		before := client.MergeFrom(img.DeepCopy())
		img.Status.Message = newSentMessage()
		return p.inMember.Status().Patch(ctx, img, before)
	})
	if err != nil {
		return 0, nil, err
	}
	deadline := time.Now().Add(10 * time.Second)
	err = p.awaitCondition(ctx, 500*time.Millisecond, "the plain hub has seen the changes", func(ctx context.Context) (bool, error) {
		took = nil
		for _, r := range p.replicas {
			state, err := r.running.(*plainReplica).readState(ctx)
			if err != nil {
				return false, err
			}
			took = append(took, state.Took...)
		}
		// Only the second of two changes of one image may be seen.
		return len(took) >= made || len(took) > 0 && time.Now().After(deadline), nil
	})
	return made, took, err
}

// measurePlain measures the plain hub as measureHub measures the hub.
func (s *hubSetup) measurePlain(ctx context.Context, members []*fakemember.Member) (run sideResult, err error) {
	start := time.Now()
	p, err := newPlainSetup(ctx, s, members)
	if err != nil {
		return run, err
	}
	run = newSideResult()
	if _, err := p.start(ctx, 1, nil); err != nil {
		return run, err
	}
	empty, err := p.readMemories(ctx)
	if err != nil {
		return run, err
	}
	if err := p.stopReplicas(); err != nil {
		return run, err
	}
	if _, err := p.start(ctx, 1, p.of); err != nil {
		return run, err
	}
	printProgress(start, "the plain hub has all members")
	idle, err := p.readMemories(ctx)
	if err != nil {
		return run, err
	}
	if err := p.fillMembers(ctx); err != nil {
		return run, err
	}
	printProgress(start, "it has seen all images")
	for _, count := range replicaCounts {
		if run.settled[count], err = p.start(ctx, count, p.of); err != nil {
			return run, err
		}
		if run.idle[count], err = p.measureIdle(ctx); err != nil {
			return run, err
		}
		all, err := p.readMemories(ctx)
		if err != nil {
			return run, err
		}
		if count == 1 {
			run.idleMemory, run.imageMemory = idle[0].perThingSince(empty[0], len(p.of)), all[0].perThingSince(idle[0], len(p.of)*imagesPerMember)
		}
		run.recordMemory(count, all)
		printProgress(start, fmt.Sprintf("measured at rest, replicas: %d", count))
	}
	if run.counts, err = p.countMembersPerReplica(ctx); err != nil {
		return run, err
	}
	run.changing, err = p.measureDuring(func() (err error) {
		run.changes, run.latencies, err = p.measureSeenChanges(ctx)
		return err
	})
	if err != nil {
		return run, err
	}
	p.killReplica(p.replicas[len(p.replicas)-1])
	if run.takeover, err = p.awaitOwners(ctx, time.Now(), p.of); err != nil {
		return run, err
	}
	printProgress(start, "measured what is lost\n")
	return run, p.stopReplicas()
}
