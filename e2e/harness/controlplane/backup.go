//go:build linux

package controlplane

import (
	"context"
	"fmt"
	"os"

	"github.com/pelotech/ot-fleet/e2e/harness/process"
)

// Backup is a copy of a control plane's etcd.
type Backup struct {
	plane  *ControlPlane
	dir    string
	remove func() error
}

// Backup copies etcd's data. The API server is killed meanwhile, for some seconds.
func (c *ControlPlane) Backup(ctx context.Context) (*Backup, error) {
	dir, remove, err := process.TempDir("ot-fleet-backup-")
	if err != nil {
		return nil, err
	}
	b := &Backup{plane: c, dir: dir, remove: remove}
	if err := c.runWithoutEtcd(ctx, func() error { return os.CopyFS(dir, os.DirFS(c.etcdDir())) }); err != nil {
		return nil, fmt.Errorf("backing up %s: %w", c.Name(), err)
	}
	return b, nil
}

// Restore puts the control plane back to the backup. Resource versions fall with it, as after any
// restore of etcd that does not bump its revision: watches must be restarted.
func (b *Backup) Restore(ctx context.Context) error {
	c := b.plane
	err := c.runWithoutEtcd(ctx, func() error {
		if err := os.RemoveAll(c.etcdDir()); err != nil {
			return err
		}
		return os.CopyFS(c.etcdDir(), os.DirFS(b.dir))
	})
	if err != nil {
		return fmt.Errorf("restoring %s: %w", c.Name(), err)
	}
	return nil
}

// Remove deletes the backup's files.
func (b *Backup) Remove() error { return b.remove() }

// runWithoutEtcd calls do while neither the API server nor etcd runs.
func (c *ControlPlane) runWithoutEtcd(ctx context.Context, do func() error) error {
	c.KillAPIServer()
	c.mu.Lock()
	err := c.etcd.Stop(stopTimeout)
	if err == nil {
		err = do()
	}
	if err == nil {
		err = c.startEtcd()
	}
	c.mu.Unlock()
	if err != nil {
		return err
	}
	return c.StartAPIServer(ctx)
}
