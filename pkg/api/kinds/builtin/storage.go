package builtin

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	internalcore "k8s.io/kubernetes/pkg/apis/core"
	internal "k8s.io/kubernetes/pkg/apis/storage"
	_ "k8s.io/kubernetes/pkg/apis/storage/install"
	storageutil "k8s.io/kubernetes/pkg/apis/storage/util"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolume"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim"
	"k8s.io/kubernetes/pkg/registry/storage/storageclass"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// storage returns the rows of persistent volumes, their claims and their classes.
func storage() []*kind.Resource {
	volumes := row[corev1.PersistentVolume, corev1.PersistentVolumeList](gv("", "v1"), "persistentvolumes",
		"persistentvolume", persistentvolume.Strategy, metaFields)
	volumes.ShortNames, volumes.Status, volumes.ReturnsDeleted = []string{"pv"}, persistentvolume.StatusStrategy, true

	claims := row[corev1.PersistentVolumeClaim, corev1.PersistentVolumeClaimList](gv("", "v1"), "persistentvolumeclaims",
		"persistentvolumeclaim", claimStrategy{persistentvolumeclaim.Strategy}, metaFields)
	claims.ShortNames, claims.Status, claims.ReturnsDeleted = []string{"pvc"}, persistentvolumeclaim.StatusStrategy, true

	classes := row[storagev1.StorageClass, storagev1.StorageClassList](gv("storage.k8s.io", "v1"), "storageclasses",
		"storageclass", storageclass.Strategy, metaFields)
	classes.ShortNames, classes.ReturnsDeleted = []string{"sc"}, true
	classes.Table = markDefault{classes.Table}
	return []*kind.Resource{volumes, claims, classes}
}

// claimStrategy is upstream's strategy, but sets a new claim's phase. Upstream's registry gets the phase from the
// defaults when it decodes the stored object.
type claimStrategy struct{ kind.Strategy }

func (s claimStrategy) PrepareForCreate(ctx context.Context, o runtime.Object) {
	s.Strategy.PrepareForCreate(ctx, o)
	if c, ok := o.(*internalcore.PersistentVolumeClaim); ok {
		c.Status.Phase = internalcore.ClaimPending
	}
}

func (claimStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return persistentvolumeclaim.Strategy.GetResetFields()
}

// markDefault marks the default class in lists. Upstream's printer does so only when it prints a whole list, but
// here objects are printed one by one.
type markDefault struct{ rest.TableConvertor }

func (m markDefault) ConvertToTable(ctx context.Context, o, options runtime.Object) (*metav1.Table, error) {
	t, err := m.TableConvertor.ConvertToTable(ctx, o, options)
	if c, ok := o.(*internal.StorageClass); ok && err == nil && storageutil.IsDefaultAnnotation(c.ObjectMeta) &&
		len(t.Rows) == 1 && len(t.Rows[0].Cells) > 0 {
		t.Rows[0].Cells[0] = c.Name + " (default)"
	}
	return t, err
}
