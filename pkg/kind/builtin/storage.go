package builtin

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	_ "k8s.io/kubernetes/pkg/apis/storage/install"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolume"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim"
	"k8s.io/kubernetes/pkg/registry/storage/storageclass"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// storage returns the rows of persistent volumes, their claims and their classes.
func storage() []*kind.Resource {
	volumes := row[corev1.PersistentVolume, corev1.PersistentVolumeList](gv("", "v1"), "persistentvolumes", "persistentvolume", persistentvolume.Strategy, metaFields)
	volumes.ShortNames, volumes.Status, volumes.ReturnsDeleted = []string{"pv"}, persistentvolume.StatusStrategy, true

	claims := row[corev1.PersistentVolumeClaim, corev1.PersistentVolumeClaimList](gv("", "v1"), "persistentvolumeclaims", "persistentvolumeclaim", persistentvolumeclaim.Strategy, metaFields)
	claims.ShortNames, claims.Status, claims.ReturnsDeleted = []string{"pvc"}, persistentvolumeclaim.StatusStrategy, true

	classes := row[storagev1.StorageClass, storagev1.StorageClassList](gv("storage.k8s.io", "v1"), "storageclasses", "storageclass", storageclass.Strategy, metaFields)
	classes.ShortNames, classes.ReturnsDeleted = []string{"sc"}, true
	return []*kind.Resource{volumes, claims, classes}
}
