package volumebinding

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	helpers "k8s.io/component-helpers/storage/volume"

	"github.com/coracle-dev/coracle/apis/storage"
)

func claim(name string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	class := "local"
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:  "ns",
			Name:       name,
			UID:        types.UID("uid-" + name),
			Finalizers: []string{claimProtection},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: size("1Gi")},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func size(s string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(s)}
}

func volume(name, capacity string, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Finalizers: []string{volumeProtection}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size(capacity), StorageClassName: "local",
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data"}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
	}
	for _, f := range change {
		f(v)
	}
	return v
}

func class(provisioner string, mode storagev1.VolumeBindingMode) *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: provisioner, VolumeBindingMode: &mode,
		ReclaimPolicy: new(corev1.PersistentVolumeReclaimDelete),
	}
}

func node(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name},
		Annotations: map[string]string{storage.DirectoryAnnotation: "/var/lib/" + name}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
}

func refTo(c *corev1.PersistentVolumeClaim) func(*corev1.PersistentVolume) {
	return func(v *corev1.PersistentVolume) {
		v.Spec.ClaimRef = &corev1.ObjectReference{
			Kind:       "PersistentVolumeClaim",
			APIVersion: "v1",
			Namespace:  c.Namespace,
			Name:       c.Name,
			UID:        c.UID,
		}
	}
}

func annotated(pairs ...string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		for i := 0; i < len(pairs); i += 2 {
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, pairs[i], pairs[i+1])
		}
	}
}

func asked(provisioner string, more ...string) func(*corev1.PersistentVolumeClaim) {
	return annotated(append(more, helpers.AnnStorageProvisioner, provisioner, helpers.AnnBetaStorageProvisioner,
		provisioner)...)
}

func copyOf(c *corev1.PersistentVolumeClaim) {
	c.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "d"}
}

// filled marks a volume that is filled with a copy.
func filled(more ...string) func(*corev1.PersistentVolume) {
	return func(v *corev1.PersistentVolume) {
		metav1.SetMetaDataAnnotation(&v.ObjectMeta, storage.ContentAnnotation, "volume/d")
		for i := 0; i < len(more); i += 2 {
			metav1.SetMetaDataAnnotation(&v.ObjectMeta, more[i], more[i+1])
		}
	}
}

func deleted(o metav1.Object) { o.SetDeletionTimestamp(&metav1.Time{}) }
