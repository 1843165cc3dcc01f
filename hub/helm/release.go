package helm

import (
	"errors"
	"fmt"
	"strconv"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/kube"
	"helm.sh/helm/v4/pkg/release/common"
	release "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage/driver"

	"github.com/pelotech/ot-fleet/hub/install"
)

// Labels of a release that a hub made.
const (
	labelHub      = "pelotech.ot/installed-by-hub"
	labelMember   = "pelotech.ot/installed-for"
	labelRevision = "pelotech.ot/installed-revision"
	labelNumber   = "pelotech.ot/installed-number"
)

// maxHistory is the number of releases that are kept.
const maxHistory = 5

func releaseLabels(by install.Installer, revision string, number int) map[string]string {
	return map[string]string{labelHub: by.Hub, labelMember: by.Member, labelRevision: revision, labelNumber: strconv.Itoa(number)}
}

// GetRelease returns the newest release of a name; nil for none.
func (m *Member) GetRelease(name string) (*install.Release, error) {
	_, last, err := m.readRelease(name)
	if last == nil || err != nil {
		return nil, err
	}
	found := &install.Release{Name: last.Name, Number: last.Version, Status: install.Status(last.Info.Status)}
	if last.Chart != nil && last.Chart.Metadata != nil {
		found.Chart = last.Chart.Metadata.AppVersion
		found.Version = agentVersion(last.Config, found.Chart)
	}
	if last.Labels[labelNumber] == strconv.Itoa(last.Version) {
		found.Installer = install.Installer{Hub: last.Labels[labelHub], Member: last.Labels[labelMember]}
		found.Revision = last.Labels[labelRevision]
	}
	return found, nil
}

// readRelease returns Helm's configuration, and the newest release of a name; nil for none.
func (m *Member) readRelease(name string) (*action.Configuration, *release.Release, error) {
	cfg, err := m.newActionConfig()
	if err != nil {
		return nil, nil, err
	}
	last, err := getLastRelease(cfg, name)
	return cfg, last, err
}

func getLastRelease(cfg *action.Configuration, name string) (*release.Release, error) {
	found, err := cfg.Releases.Last(name)
	if errors.Is(err, driver.ErrReleaseNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading release %s: %w", name, err)
	}
	last, ok := found.(*release.Release)
	if !ok || last.Info == nil {
		return nil, fmt.Errorf("reading release %s: it is of a kind (%T) that this hub does not know", name, found)
	}
	return last, nil
}

// ReleaseSpec is a release to make.
type ReleaseSpec struct {
	Name      string
	Installer install.Installer
	Chart     *Chart
	Values    *Values
	// TakeOwnership of existing objects with the same names.
	TakeOwnership bool
}

// Install makes the first release. It does not wait for the workloads to become ready.
func (m *Member) Install(w ReleaseSpec) error {
	cfg, last, err := m.readRelease(w.Name)
	if err != nil {
		return err
	}
	number := 1
	if last != nil {
		number = last.Version + 1 // an uninstalled release with kept history
	}
	loaded, err := w.Chart.loadCopy()
	if err != nil {
		return err
	}
	do := action.NewInstall(cfg)
	do.ReleaseName, do.Namespace, do.Replace = w.Name, m.namespace, true
	do.Labels = releaseLabels(w.Installer, w.Values.Revision, number)
	do.TakeOwnership, do.ForceConflicts = w.TakeOwnership, true
	do.DisableHooks, do.WaitStrategy, do.DisableOpenAPIValidation = true, kube.HookOnlyStrategy, true
	do.Description = "Installed by ot-hub"
	if _, err := do.Run(loaded, w.Values.merged); err != nil {
		return fmt.Errorf("installing release %s: %w", w.Name, err)
	}
	return verifyDeployed(cfg, w.Name, number)
}

// Upgrade makes the next release and reverts manual changes to what the chart sets. It
// does not wait for the workloads to become ready.
func (m *Member) Upgrade(w ReleaseSpec) error {
	cfg, last, err := m.readRelease(w.Name)
	if err != nil {
		return err
	}
	if last == nil {
		return fmt.Errorf("upgrading release %s: it was uninstalled meanwhile", w.Name)
	}
	loaded, err := w.Chart.loadCopy()
	if err != nil {
		return err
	}
	do := action.NewUpgrade(cfg)
	do.Namespace, do.MaxHistory, do.ResetValues = m.namespace, maxHistory, true
	do.Labels = releaseLabels(w.Installer, w.Values.Revision, last.Version+1)
	do.TakeOwnership, do.ForceConflicts, do.ServerSideApply = w.TakeOwnership, true, "true"
	do.DisableHooks, do.WaitStrategy, do.DisableOpenAPIValidation = true, kube.HookOnlyStrategy, true
	do.Description = "Upgraded by ot-hub"
	if _, err := do.Run(w.Name, loaded, w.Values.merged); err != nil {
		return fmt.Errorf("upgrading release %s: %w", w.Name, err)
	}
	return verifyDeployed(cfg, w.Name, last.Version+1)
}

// verifyDeployed checks that a release is stored as deployed. If storing fails, Helm 4.2
// logs an error and returns none.
func verifyDeployed(cfg *action.Configuration, name string, number int) error {
	last, err := getLastRelease(cfg, name)
	if err != nil {
		return err
	}
	if last == nil || last.Version != number || last.Info.Status != common.StatusDeployed {
		return fmt.Errorf("recording release %s, number %d: its objects were applied, but Helm could not record it as deployed; the next attempt repairs that", name, number)
	}
	return nil
}

// Recover marks an abandoned pending release as failed. Helm makes no other release
// before that.
func (m *Member) Recover(name string, by install.Installer) error {
	cfg, last, err := m.readRelease(name)
	if err != nil {
		return err
	}
	if last == nil || !last.Info.Status.IsPending() {
		return nil
	}
	if (install.Installer{Hub: last.Labels[labelHub], Member: last.Labels[labelMember]}) != by || last.Labels[labelNumber] != strconv.Itoa(last.Version) {
		return fmt.Errorf("ending release %s, which is %s: another Helm operation has changed it", name, last.Info.Status)
	}
	last.SetStatus(common.StatusFailed, "The hub ended before this did")
	if err := cfg.Releases.Update(last); err != nil {
		return fmt.Errorf("ending release %s, which was left pending: %w", name, err)
	}
	return nil
}
