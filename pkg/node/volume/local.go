package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	helpers "k8s.io/component-helpers/storage/volume"

	"github.com/coracle-dev/coracle/apis/storage"
)

// local is the plugin for local persistent volumes: directories or block devices that an administrator prepared, and
// volumes provisioned by Coracle, which Setup makes when the first pod needs them.
type local struct {
	own *Directories
}

func (local) Name() string { return "kubernetes.io/local-volume" }

func (local) CanSupport(*corev1.VolumeSource) bool { return false }

func (local) CanSupportPersistent(s *corev1.PersistentVolumeSource) bool { return s.Local != nil }

func (l local) Setup(ctx context.Context, p Pod, v *Volume) (Mounted, error) {
	pv := p.Persistent.Volume
	out := Mounted{Path: pv.Spec.Local.Path, ReadOnly: p.Persistent.ReadOnly, Block: p.Persistent.Block()}
	if !filepath.IsAbs(out.Path) {
		return out, fmt.Errorf("path %q is not absolute", out.Path)
	}
	if pv.Annotations[helpers.AnnDynamicallyProvisioned] == storage.Provisioner {
		// A missing copy is not replaced by an empty volume.
		if _, err := os.Lstat(out.Path); errors.Is(err, fs.ErrNotExist) && pv.Annotations[storage.ContentAnnotation] != "" {
			return out, fmt.Errorf("the volume was made as a copy, and %s is gone", out.Path)
		}
		if out.Block {
			var err error
			least, most := sizes(p.Persistent)
			out.Path, err = l.own.attach(pv.Name, out.Path, least, most)
			return out, err
		}
		if err := l.own.make(pv.Name, out.Path, pv.Spec.Capacity.Storage().Value()); err != nil {
			return out, err
		}
	}
	info, err := os.Stat(out.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return out, fmt.Errorf("path %q does not exist", out.Path)
	case err != nil:
		return out, err
	case out.Block && info.Mode()&(fs.ModeDevice|fs.ModeCharDevice) != fs.ModeDevice:
		return out, fmt.Errorf("path %q is not a block device, as volumeMode Block wants", out.Path)
	case out.Block:
		return out, nil
	case !info.IsDir():
		return out, fmt.Errorf("path %q is not a directory: a block device is a volume of volumeMode Block, or has to be "+
			"mounted by the administrator", out.Path)
	}
	if v.State != nil {
		return out, nil // the owner was set when the pod started
	}
	if !out.ReadOnly {
		if err := l.own.fits(ctx, pv.Name, p.Persistent.Claim.Name); err != nil {
			return out, err
		}
	}
	if err := setOwner(ctx, p.Pod, out); err != nil {
		return out, err
	}
	return out, v.Save("owned")
}

// sizes returns a volume's least and largest size in bytes. They differ while it is being expanded.
func sizes(p *Persistent) (least, most int64) {
	most = p.Volume.Spec.Capacity.Storage().Value()
	if least = p.Claim.Status.Capacity.Storage().Value(); least <= 0 {
		least = most
	}
	return min(least, most), most
}

func (l local) Teardown(_ context.Context, v *Volume) error {
	return l.own.release(v.Persistent, v.UID)
}
