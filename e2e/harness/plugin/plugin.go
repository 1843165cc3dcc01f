//go:build linux

// Package plugin builds the kubectl plugin of this checkout and runs it as people do: as a
// process with a kubeconfig.
package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/process"
)

// Name of the program: kubectl finds it as kubectl ot.
const Name = binaries.PluginName

// Build builds the plugin, once in this process or for the whole run of tests, and returns its path.
var Build = sync.OnceValues(func() (string, error) {
	if path, err := binaries.PluginProgram.FindPrebuilt(); err != nil || path != "" {
		return path, err
	}
	top, err := binaries.FindCheckout()
	if err != nil {
		return "", err
	}
	dir, _, err := process.TempDir("ot-fleet-plugin-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, Name)
	return path, binaries.PluginProgram.Build(context.Background(), top, binaries.PluginProgram.Version, path)
})

// Plugin runs commands with one kubeconfig.
type Plugin struct {
	// Kubeconfig is the path of its file.
	Kubeconfig string
	// Env is added to the environment of the commands.
	Env []string
}

// Context is a context of a kubeconfig.
type Context struct {
	Name   string
	Config *rest.Config
	// Hub is the context of the hub, kept as the context's extension; empty for none.
	Hub string
}

// New writes a kubeconfig, whose first context is the current one, to a file in dir.
func New(dir string, contexts ...Context) (*Plugin, error) {
	merged := clientcmdapi.NewConfig()
	for _, c := range contexts {
		text, err := controlplane.Kubeconfig(c.Config)
		if err != nil {
			return nil, err
		}
		one, err := clientcmd.Load(text)
		if err != nil {
			return nil, fmt.Errorf("reading the kubeconfig of %s: %w", c.Name, err)
		}
		context := one.Contexts[one.CurrentContext]
		merged.Clusters[c.Name], merged.AuthInfos[c.Name] = one.Clusters[context.Cluster], one.AuthInfos[context.AuthInfo]
		context.Cluster, context.AuthInfo = c.Name, c.Name
		if c.Hub != "" {
			context.Extensions["pelotech.ot/hub"] = newText(c.Hub)
		}
		merged.Contexts[c.Name] = context
	}
	merged.CurrentContext = contexts[0].Name
	path := filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*merged, path); err != nil {
		return nil, fmt.Errorf("writing the kubeconfig %s: %w", path, err)
	}
	return &Plugin{Kubeconfig: path}, nil
}

// Command returns a command that was not started yet.
func (p *Plugin) Command(ctx context.Context, args ...string) (*exec.Cmd, error) {
	path, err := Build()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(append(os.Environ(), "KUBECONFIG="+p.Kubeconfig, "OT_HUB="), p.Env...)
	return cmd, nil
}

// Result is what a command printed and how it ended.
type Result struct {
	Out, Err string
	Code     int
}

// Run runs a command. The error is about running it, not about its exit code.
func (p *Plugin) Run(ctx context.Context, stdin io.Reader, args ...string) (Result, error) {
	cmd, err := p.Command(ctx, args...)
	if err != nil {
		return Result{}, err
	}
	var out, problems bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &problems
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = nil
	}
	if err != nil {
		return Result{}, fmt.Errorf("running kubectl ot %s: %w", strings.Join(args, " "), err)
	}
	return Result{Out: out.String(), Err: problems.String(), Code: cmd.ProcessState.ExitCode()}, nil
}

// PeopleNamespace has the ServiceAccounts that stand for people: the read API takes tokens,
// which the administrator's client certificate is not.
const PeopleNamespace = "people"

// CreateAdministrator creates an account with all rights and returns its configuration,
// which has a token.
func CreateAdministrator(ctx context.Context, cp *controlplane.ControlPlane, name string) (*rest.Config, error) {
	c, err := client.New(cp.Config(), client.Options{})
	if err != nil {
		return nil, err
	}
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: PeopleNamespace}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: PeopleNamespace, Name: name}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: PeopleNamespace + "-" + name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: PeopleNamespace, Name: name}},
		},
	} {
		if err := c.Create(ctx, o); err != nil && !apierrors.IsAlreadyExists(err) {
			return nil, fmt.Errorf("creating administrator %s: %w", name, err)
		}
	}
	return cp.ServiceAccountConfig(ctx, PeopleNamespace, name)
}

func newText(text string) *runtime.Unknown {
	return &runtime.Unknown{Raw: []byte(strconv.Quote(text)), ContentType: runtime.ContentTypeJSON}
}
