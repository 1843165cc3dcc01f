package gather

import (
	"context"
	"fmt"
	"io"
	"path"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/cli/bundle"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/doctor"
	doctorgather "github.com/pelotech/ot-fleet/cli/doctor/gather"
)

func (g *Gatherer) doctorOptions(cluster string) doctorgather.Options {
	return doctorgather.Options{Cluster: cluster, CLIVersion: g.options.CLIVersion, AgentNamespace: g.options.AgentNamespace, Now: g.options.Now}
}

func (g *Gatherer) doctor(file string, snapshot *doctor.Snapshot, err error) {
	if err != nil {
		g.Unread(file, err)
		return
	}
	g.addJSON(file, doctor.Examine(snapshot))
}

func (g *Gatherer) version(c *connect.Cluster, folder string) {
	file := path.Join(folder, "version.json")
	d, err := discovery.NewDiscoveryClientForConfig(c.Config)
	if err != nil {
		g.Unread(file, err)
		return
	}
	info, err := d.ServerVersion()
	if err != nil {
		g.Unread(file, err)
		return
	}
	g.addJSON(file, map[string]string{"kubernetes": info.GitVersion, "kubectl-ot": g.options.CLIVersion})
}

// policy reads the one ConfigMap that is ours.
func (g *Gatherer) policy(ctx context.Context, c *connect.Cluster, folder string) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	file := path.Join(folder, "policy.yaml")
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"})
	err := c.Client.Get(ctx, client.ObjectKey{Namespace: policy.DefaultNamespace, Name: policy.DefaultName}, object)
	if err != nil {
		if client.IgnoreNotFound(err) != nil {
			g.Unread(file, err)
		}
		return
	}
	g.objects[file] = append(g.objects[file], object.Object)
}

// events reads those about kinds of ours, in all namespaces. The API server selects them: a
// cluster has many more.
func (g *Gatherer) events(ctx context.Context, c *connect.Cluster, folder string) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	file := path.Join(folder, "events.yaml")
	after := g.options.Now().Add(-g.options.Since)
	kept := 0
	ours := []client.ListOption{client.MatchingFields{"involvedObject.apiVersion": own.String()}}
	err := g.pages(ctx, c, corev1.SchemeGroupVersion.WithKind("EventList"), ours, func(item map[string]any) error {
		var e corev1.Event
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item, &e); err != nil {
			return err
		}
		seen := e.LastTimestamp.Time
		if seen.IsZero() {
			seen = e.EventTime.Time
		}
		if seen.Before(after) {
			return nil
		}
		if kept++; kept > maxEvents {
			return fmt.Errorf("only the first %d events: shorten --since", maxEvents)
		}
		g.objects[file] = append(g.objects[file], map[string]any{
			"metadata": map[string]any{"namespace": e.Namespace, "name": e.Name},
			"kind":     "Event", "type": e.Type, "reason": e.Reason, "message": e.Message, "count": int64(e.Count), "lastTimestamp": seen.UTC().Format("2006-01-02T15:04:05Z"),
			"involvedObject": map[string]any{"kind": e.InvolvedObject.Kind, "namespace": e.InvolvedObject.Namespace, "name": e.InvolvedObject.Name},
		})
		return nil
	})
	if err != nil {
		g.Unread(file, err)
	}
}

// logs reads those of the program's Pods.
func (g *Gatherer) logs(ctx context.Context, c *connect.Cluster, folder, namespace string, labels map[string]string) {
	ctx, cancel := context.WithTimeout(ctx, 2*requestTimeout)
	defer cancel()
	var pods corev1.PodList
	if err := c.Client.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabels(labels), client.Limit(maxPods)); err != nil {
		g.Unread(path.Join(folder, "logs"), err)
		return
	}
	clientset, err := kubernetes.NewForConfig(c.Config)
	if err != nil {
		g.Unread(path.Join(folder, "logs"), err)
		return
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		for _, container := range pod.Spec.Containers {
			file := path.Join(folder, "logs", fmt.Sprintf("%s-%s.log", pod.Name, container.Name))
			text, err := readLog(ctx, clientset, pod, container.Name, int64(g.options.Since.Seconds()))
			if err != nil {
				g.Unread(file, err)
				continue
			}
			g.texts[file] = text
		}
	}
}

const (
	maxPods   = 20
	maxEvents = 5000
	// maxLogBytes bounds what is read of one log, of which the end is kept.
	maxLogBytes = 256 << 20
)

func readLog(ctx context.Context, clientset kubernetes.Interface, pod *corev1.Pod, container string, seconds int64) (string, error) {
	stream, err := clientset.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
		Container: container, SinceSeconds: ptr.To(max(1, seconds)), LimitBytes: ptr.To[int64](maxLogBytes),
	}).Stream(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = stream.Close() }()
	end := &tail{size: bundle.MaxFileBytes}
	_, err = io.Copy(end, io.LimitReader(stream, maxLogBytes))
	return end.String(), err
}

// tail keeps the end of what is written: the newest lines are there.
type tail struct {
	size int
	kept []byte
}

// Write implements io.Writer. It never fails.
func (t *tail) Write(text []byte) (int, error) {
	t.kept = append(t.kept, text...)
	if len(t.kept) > 2*t.size { // not at each write: it moves all of it
		t.kept = append([]byte(nil), t.kept[len(t.kept)-t.size:]...)
	}
	return len(text), nil
}

// String returns at most size bytes.
func (t *tail) String() string { return string(t.kept[max(0, len(t.kept)-t.size):]) }
