package scheduler

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	helpers "k8s.io/component-helpers/storage/volume"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/coracle-dev/coracle/apis/storage"
)

func storageNode(name string, more map[string]string) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Labels:      map[string]string{corev1.LabelHostname: name},
			Annotations: map[string]string{storage.DirectoryAnnotation: "/v"},
		},
	}
	for k, v := range more {
		n.Labels[k] = v
	}
	n.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("10")}
	return n
}

func podWithClaim(name string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	p.Spec.Volumes = []corev1.Volume{
		{
			Name:         "v",
			VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}},
		},
	}
	return p
}

func TestVolumesDecideNodes(t *testing.T) {
	class := func(provisioner string) *storagev1.StorageClass {
		return &storagev1.StorageClass{
			ObjectMeta:        metav1.ObjectMeta{Name: "local"},
			Provisioner:       provisioner,
			VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
		}
	}
	claim := func(change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "c", Annotations: map[string]string{}},
			Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: new("local"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
				}},
		}
		if change != nil {
			change(c)
		}
		return c
	}
	bound := func(c *corev1.PersistentVolumeClaim) {
		c.Spec.VolumeName, c.Annotations[helpers.AnnBindCompleted] = "pv", "yes"
	}
	volume := func(node string, labels map[string]string) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv", Labels: labels},
			Status:     corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
			Spec: corev1.PersistentVolumeSpec{
				StorageClassName: "local", AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
				NodeAffinity: &corev1.VolumeNodeAffinity{
					Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
						MatchExpressions: []corev1.NodeSelectorRequirement{
							{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
						}}}},
				},
			},
		}
	}
	for name, tt := range map[string]struct {
		objects []ctrlclient.Object
		used    bool
		node    string // "": none
		why     string
		static  bool
	}{
		"no claim": {why: `available: persistentvolumeclaim "c" not found.`},
		"no class": {
			objects: []ctrlclient.Object{claim(nil)}, why: "available: pod has unbound immediate PersistentVolumeClaims.",
		},
		"bound on b":            {objects: []ctrlclient.Object{claim(bound), volume("b", nil)}, node: "b"},
		"bound on another node": {objects: []ctrlclient.Object{claim(bound), volume("c", nil)}, why: volumeElsewhere},
		"another zone": {
			objects: []ctrlclient.Object{claim(bound), volume("b", map[string]string{corev1.LabelTopologyZone: "z2__z3"})},
			why:     otherZone,
		},
		"its zone": {
			objects: []ctrlclient.Object{claim(bound), volume("b", map[string]string{corev1.LabelTopologyZone: "z2__z1"})},
			node:    "b",
		},
		"a free volume on b": {
			objects: []ctrlclient.Object{claim(nil), class(helpers.NotSupportedProvisioner), volume("b", nil)}, node: "b",
			static: true,
		},
		"no free volume": {
			objects: []ctrlclient.Object{claim(nil), class(helpers.NotSupportedProvisioner)}, why: noVolumeToBind,
		},
		"provisioned": {objects: []ctrlclient.Object{claim(nil), class(storage.Provisioner)}, node: "a"},
		"being provisioned": {
			objects: []ctrlclient.Object{
				claim(func(c *corev1.PersistentVolumeClaim) { c.Annotations[helpers.AnnSelectedNode] = "a" }),
				class(storage.Provisioner),
			},
			why: `available: waiting for persistentvolumeclaim "c" to be provisioned on node "a".`,
		},
		"used once": {objects: []ctrlclient.Object{claim(func(c *corev1.PersistentVolumeClaim) {
			bound(c)
			c.Spec.AccessModes[0] = corev1.ReadWriteOncePod
		}), volume("b", nil)}, used: true, why: usedByAnotherPod},
	} {
		t.Run(name, func(t *testing.T) {
			s := newState(100, func(string) map[string]string { return nil })
			s.volumes.read = fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(tt.objects...).Build()
			s.setNode(storageNode("a", nil))
			if tt.node != "a" {
				s.setNode(storageNode("b", map[string]string{corev1.LabelTopologyZone: "z1"}))
			}
			if tt.used {
				s.assign(newPodInfo(podWithClaim("other")), "b")
			}
			p := newPodInfo(podWithClaim("p"))
			n, failed := s.pick(p)
			if tt.node == "" {
				require.NotNil(t, failed)
				require.Contains(t, failed.message(""), tt.why)
				return
			}
			require.Nil(t, failed)
			require.Equal(t, tt.node, n.name)
			require.NoError(t, takeVolumes(s, p, n))
			require.Equal(t, tt.static, len(s.volumes.assumed) > 0)
			if tt.static {
				releaseVolumes(s, p, n)
				require.Empty(t, s.volumes.assumed)
			}
		})
	}
}
