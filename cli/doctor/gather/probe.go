package gather

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/health"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/doctor"
)

const (
	// probeTimeout ends the Job and the wait for it.
	probeTimeout = 60 * time.Second
	// probeKept is how long the cluster keeps a Job that ended, where this program was killed.
	probeKept     = 60
	probeInterval = 250 * time.Millisecond
	cleanTimeout  = 10 * time.Second
)

// probe sends a HEAD request from a Pod in the cluster. It is a Job with a deadline and a time
// to live, so that the cluster itself removes it where this program cannot.
func (r *reader) probe(ctx context.Context) {
	s := r.snapshot
	picture := r.options.ProbeImage
	if picture == "" {
		picture = s.Agent.Image
	}
	if picture == "" {
		s.Unread[doctor.SourceProbe] = "there is no agent here whose image could be run: name one of ot-agent with --probe-image"
		return
	}
	job := r.newProbe(picture)
	if err := r.Client.Create(ctx, job); err != nil {
		s.Unread[doctor.SourceProbe] = describe(string(doctor.SourceProbe)+" in namespace "+job.Namespace, err)
		return
	}
	defer func() {
		cleaning, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
		defer cancel()
		err := r.Client.Delete(cleaning, job, client.PropagationPolicy(metav1.DeletePropagationBackground))
		if client.IgnoreNotFound(err) != nil {
			s.Probe.Error = v1alpha1.SanitizeText(fmt.Sprintf("%s (Job %s/%s could not be deleted: %s; the cluster deletes it in two minutes)", s.Probe.Error, job.Namespace, job.Name, err), maxErrorBytes)
		}
	}()
	s.Probe = &doctor.Probe{URL: s.Asked.ProbeURL}
	r.awaitProbe(ctx, job, s.Probe)
}

// awaitProbe waits until the Pod has ended, and reads its message.
func (r *reader) awaitProbe(ctx context.Context, job *batchv1.Job, p *doctor.Probe) {
	state := "its Pod was not created"
	err := wait.PollUntilContextTimeout(ctx, probeInterval, probeTimeout, true, func(ctx context.Context) (bool, error) {
		var pods corev1.PodList
		if err := r.Client.List(ctx, &pods, client.InNamespace(job.Namespace), client.MatchingLabels{batchv1.JobNameLabel: job.Name}, client.Limit(maxNamedReads)); err != nil {
			return false, err
		}
		for i := range pods.Items {
			pod := &pods.Items[i]
			state = describePod(pod)
			for _, c := range pod.Status.ContainerStatuses {
				if t := c.State.Terminated; t != nil {
					readAnswer(t.Message, p)
					return true, nil
				}
			}
		}
		return false, nil
	})
	switch {
	case err == nil:
	case wait.Interrupted(err) || errors.Is(err, context.Canceled):
		p.NotRun = fmt.Sprintf("the Pod of --probe did not end within %s: %s", probeTimeout, v1alpha1.SanitizeText(state, maxErrorBytes))
	default:
		p.NotRun = describe(string(doctor.SourceProbe), err)
	}
}

// readAnswer takes over what health.Head wrote. Other messages are of images that do not know
// its flag.
func readAnswer(message string, p *doctor.Probe) {
	var answer health.HeadAnswer
	if err := json.Unmarshal([]byte(message), &answer); err != nil {
		p.NotRun = "the image of the Pod cannot send the request (is the agent older than this program?): " + v1alpha1.SanitizeText(message, maxErrorBytes)
		return
	}
	p.Status, p.Milliseconds, p.Bytes = answer.Status, answer.Milliseconds, answer.Bytes
	p.Error = v1alpha1.SanitizeText(answer.Error, maxErrorBytes)
}

// describePod says what a Pod waits for.
func describePod(pod *corev1.Pod) string {
	for _, c := range pod.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil {
			return w.Reason + " " + w.Message
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Status == corev1.ConditionFalse && c.Reason != "" {
			return c.Reason + " " + c.Message
		}
	}
	return "it is " + string(pod.Status.Phase)
}

// newProbe runs the agent's program with no rights, no token and no storage.
func (r *reader) newProbe(picture string) *batchv1.Job {
	var environment []corev1.EnvVar
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"} {
		if value := r.probeProxy[name]; value != "" {
			environment = append(environment, corev1.EnvVar{Name: name, Value: value})
		}
	}
	small := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("64Mi")}
	labels := map[string]string{"app.kubernetes.io/managed-by": "kubectl-ot", "app.kubernetes.io/name": "ot-doctor-probe"}
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "ot-doctor-probe-", Namespace: r.options.AgentNamespace, Labels: labels},
		Spec: batchv1.JobSpec{
			BackoffLimit: ptr.To[int32](0), ActiveDeadlineSeconds: ptr.To(int64(probeTimeout / time.Second)), TTLSecondsAfterFinished: ptr.To[int32](probeKept),
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: ptr.To(false), EnableServiceLinks: ptr.To(false),
					SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](65532), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
					Containers: []corev1.Container{{
						Name: "probe", Image: picture, Args: []string{"--head-url=" + r.options.Asked.ProbeURL}, Env: environment,
						TerminationMessagePath: health.HeadAnswerFile, TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
						Resources: corev1.ResourceRequirements{Requests: small, Limits: small},
						SecurityContext: &corev1.SecurityContext{
							AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
						},
					}},
				},
			},
		},
	}
	if agent := r.agentPod; agent != nil { // where the agent can run and pull its image, so can the probe
		pod := &job.Spec.Template.Spec
		pod.ImagePullSecrets, pod.NodeSelector, pod.Tolerations = agent.ImagePullSecrets, agent.NodeSelector, agent.Tolerations
		if agent.SecurityContext != nil {
			pod.SecurityContext = agent.SecurityContext
		}
	}
	return job
}
