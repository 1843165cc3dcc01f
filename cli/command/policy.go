package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/fleetpolicy"
)

// inForceConfigMap in the hub's namespace is what the hub keeps of the policy in force.
const inForceConfigMap = "ot-hub-policy-in-force"

func (e *environment) newPolicyCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "policy", Short: "The fleet's policy, and what a change of it would change", Args: cobra.NoArgs}
	name := cmd.PersistentFlags().String("policy", apipolicy.DefaultNamespace+"/"+apipolicy.DefaultName, "NAMESPACE/NAME of the policy's ConfigMap on the hub")
	cmd.AddCommand(e.newPolicyShowCommand(name), e.newPolicyDiffCommand(name))
	return cmd
}

// policyReader reads the policy on the hub.
type policyReader struct {
	*connect.Cluster
	key          client.ObjectKey
	hubNamespace string
}

func (e *environment) newPolicyReader(name string) (*policyReader, error) {
	namespace, configMap, ok := strings.Cut(name, "/")
	if !ok || namespace == "" || configMap == "" {
		return nil, fmt.Errorf("--policy %s: must be NAMESPACE/NAME", name)
	}
	hub, err := e.ConnectHub()
	if err != nil {
		return nil, err
	}
	return &policyReader{Cluster: hub, key: client.ObjectKey{Namespace: namespace, Name: configMap}, hubNamespace: e.HubNamespace}, nil
}

// readData returns the data of a ConfigMap, nil if there is none, and what of it is not text.
func (r *policyReader) readData(ctx context.Context, key client.ObjectKey) (data map[string]string, unreadable []apipolicy.KeyError, err error) {
	cm := &corev1.ConfigMap{}
	err = r.Client.Get(ctx, key, cm)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil, nil
	case err != nil:
		return nil, nil, fmt.Errorf("reading ConfigMap %s: %w", key, r.Explain(err))
	case cm.Data == nil:
		cm.Data = map[string]string{}
	}
	return cm.Data, apipolicy.BinaryErrors(cm.BinaryData), nil
}

// storedPolicy is the policy as it is written, with what of that is not text, and as it is in force.
type storedPolicy struct {
	written, inForce map[string]string
	unreadable       []apipolicy.KeyError
}

func (r *policyReader) read(ctx context.Context) (p storedPolicy, err error) {
	if p.written, p.unreadable, err = r.readData(ctx, r.key); err != nil {
		return storedPolicy{}, err
	}
	p.inForce, err = r.readInForce(ctx)
	return p, err
}

func (r *policyReader) readInForce(ctx context.Context) (map[string]string, error) {
	data, _, err := r.readData(ctx, client.ObjectKey{Namespace: r.hubNamespace, Name: inForceConfigMap})
	return data, err
}

func (e *environment) newPolicyShowCommand(name *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show",
		Short: "The policy in force, or that of one cluster, and where each key comes from",
		Long: `show prints the policy in force with all defaults; with --cluster that of one cluster, and
why its budget is what it is. Exit codes: 0 the ConfigMap is in force as it is written; 1 it
is not, and the screen says why.`,
		Example: "  kubectl ot policy show --cluster bergen",
		Args:    cobra.NoArgs,
	}
	useScopeFlags(cmd, "cluster")
	e.addWatchFlag(cmd)
	cmd.RunE = e.run(func(ctx context.Context, _ []string) error {
		r, err := e.newPolicyReader(*name)
		if err != nil {
			return err
		}
		return e.showOrWatch(ctx, e.watching, func(ctx context.Context) (watchState, error) {
			show, err := e.readShow(ctx, r, *name)
			if err != nil {
				return watchState{}, err
			}
			return watchState{view: show, code: show.ExitCode()}, nil
		})
	})
	return cmd
}

func (e *environment) readShow(ctx context.Context, r *policyReader, name string) (*fleetpolicy.Show, error) {
	stored, err := r.read(ctx)
	if err != nil {
		return nil, err
	}
	s := fleetpolicy.ShowSnapshot{Now: e.now(), Name: name, Written: stored.written, InForce: stored.inForce, Unreadable: stored.unreadable}
	var members v1alpha1.MemberClusterList
	if err := r.List(ctx, &members); err != nil {
		return nil, err
	}
	s.Members = members.Items
	if e.cluster != "" {
		if s.Member, err = r.GetMember(ctx, e.cluster); err != nil {
			return nil, err
		}
	}
	return fleetpolicy.NewShow(s)
}

// diffFlags say which policy is compared with the one in force.
type diffFlags struct {
	file   string
	sets   []string
	server bool
}

func (e *environment) newPolicyDiffCommand(name *string) *cobra.Command {
	f := &diffFlags{}
	cmd := &cobra.Command{
		Use:   "diff (-f FILE | --set KEY=VALUE …)",
		Short: "What a policy would change, before it is applied",
		Long: `diff compares a policy with the one in force, for each cluster. It changes nothing.
Exit codes: 0 nothing would change; 1 something would; 2 the policy would be refused, and the
screen says why.`,
		Example: "  kubectl ot policy diff -f policy.yaml\n  kubectl ot policy diff --set cluster=bergen,concurrency=4 -o markdown",
		Args:    cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.file, "filename", "f", "", "file with the ConfigMap or its data; - for standard input")
	flags.StringArrayVar(&f.sets, "set", nil, "change of the policy as it is: KEY=VALUE, or cluster=NAME,KEY=VALUE for one cluster")
	flags.BoolVar(&f.server, "server", false, "have the hub answer too, by a ConfigMap with label "+v1alpha1.LabelPolicyPreview)
	cmd.RunE = e.run(func(ctx context.Context, _ []string) error {
		r, err := e.newPolicyReader(*name)
		if err != nil {
			return err
		}
		s := fleetpolicy.DiffSnapshot{Now: e.now()}
		stored, err := r.read(ctx)
		if err != nil {
			return err
		}
		if s.InForce = stored.inForce; s.InForce == nil {
			s.InForce = stored.written
		}
		if s.Then, err = e.readPolicy(f, stored); err != nil {
			return err
		}
		if f.file == "" && stored.written == nil {
			e.printNote("ConfigMap %s is missing: --set changes an empty one", *name)
		}
		var members v1alpha1.MemberClusterList
		if err := r.List(ctx, &members); err != nil {
			return err
		}
		s.Members = members.Items
		if s.Answer, s.Unread, err = e.askBlastRadius(ctx, r.Cluster, s.Then); err != nil {
			return err
		}
		if f.server {
			if s.ServerAnswer, err = r.preview(ctx, s.Then); err != nil {
				return err
			}
		}
		diff := fleetpolicy.NewDiff(s)
		return e.show(diff, diff.ExitCode())
	})
	return cmd
}

// readPolicy returns the policy that the flags ask about.
func (e *environment) readPolicy(f *diffFlags, stored storedPolicy) (map[string]string, error) {
	switch {
	case f.file == "" && len(f.sets) == 0:
		return nil, errors.New("give the policy to compare with -f FILE, or what to change with --set KEY=VALUE")
	case f.file == "" && len(stored.unreadable) > 0:
		return nil, fmt.Errorf("the policy as it is cannot be changed by --set: key %w", stored.unreadable[0])
	case f.file == "":
		return fleetpolicy.ApplySets(stored.written, f.sets)
	}
	in, err := e.openInput(f.file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	text, err := io.ReadAll(io.LimitReader(in, fleetpolicy.MaxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("reading -f %s: %w", f.file, err)
	}
	data, err := fleetpolicy.ParseFile(text)
	if err != nil {
		return nil, fmt.Errorf("-f %s: %w", f.file, err)
	}
	return fleetpolicy.ApplySets(data, f.sets)
}

// askBlastRadius asks the hub what only it knows: how long images wait. A policy that is too
// large for that, or that it refuses, is compared here alone.
func (e *environment) askBlastRadius(ctx context.Context, hub *connect.Cluster, policy map[string]string) (answer *readapi.BlastRadius, unread string, err error) {
	text, err := yaml.Marshal(policy)
	if err != nil {
		return nil, "", err
	}
	if len(text) > readapi.MaxPolicyBytes {
		return nil, "The policy is too large to ask the hub how long images would wait", nil
	}
	const maxRows = 1000
	unread, err = e.askReadAPI(ctx, hub, func(api *connect.ReadAPI) (err error) {
		answer, err = api.BlastRadius(ctx, string(text), maxRows)
		return err
	})
	if isRefusal(err) {
		return nil, fmt.Sprintf("The hub does not say how long images would wait: %v", err), nil
	}
	return answer, unread, err
}

const (
	previewTimeout  = 30 * time.Second
	previewInterval = 200 * time.Millisecond
)

// preview has the hub say what a policy would change, and removes the ConfigMap that asks.
func (r *policyReader) preview(ctx context.Context, policy map[string]string) (answer string, err error) {
	cm := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.key.Namespace, GenerateName: "kubectl-ot-preview-", Labels: map[string]string{v1alpha1.LabelPolicyPreview: "true"}},
		Data:       policy,
	}
	if err := r.Client.Create(ctx, cm); err != nil {
		return "", fmt.Errorf("asking the hub for a preview, --server: %w", r.Explain(err))
	}
	defer func() {
		// Also after ctrl-C: nobody else deletes it.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), previewTimeout)
		defer cancel()
		if failed := r.Client.Delete(ctx, cm); failed != nil && err == nil {
			err = fmt.Errorf("deleting ConfigMap %s, which asked the hub: %w", client.ObjectKeyFromObject(cm), failed)
		}
	}()
	err = wait.PollUntilContextTimeout(ctx, previewInterval, previewTimeout, true, func(ctx context.Context) (bool, error) {
		if err := r.Client.Get(ctx, client.ObjectKeyFromObject(cm), cm); err != nil {
			return false, err
		}
		answer = cm.Annotations[v1alpha1.AnnotationPreview]
		return answer != "", nil
	})
	if wait.Interrupted(err) && ctx.Err() == nil {
		return "", fmt.Errorf("the hub did not answer the preview within %s: check that it runs, or leave out --server", previewTimeout)
	}
	return answer, err
}
