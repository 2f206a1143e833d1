package fieldset

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

func pod() *corev1.Pod {
	one := func(name string) corev1.Container {
		probe := &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(80)}},
			PeriodSeconds: 1,
		}
		return corev1.Container{
			Name: name, Image: "image", Args: []string{"a"},
			Env:   []corev1.EnvVar{{Name: "A", Value: "a"}, {Name: "B", Value: "b"}},
			Ports: []corev1.ContainerPort{{ContainerPort: 80, Protocol: "TCP"}}, LivenessProbe: probe, ReadinessProbe: probe,
			TerminationMessagePath: "/dev/termination-log", ImagePullPolicy: "IfNotPresent",
		}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "p", Namespace: "default", UID: "uid", Labels: map[string]string{"app": "web", "tier": "front"},
			OwnerReferences: []metav1.OwnerReference{{UID: "u", Kind: "ReplicaSet", Name: "web"}},
		},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{one("web"), one("sidecar")}, RestartPolicy: "Always", DNSPolicy: "ClusterFirst",
			SchedulerName:   "default-scheduler",
			SecurityContext: &corev1.PodSecurityContext{},
			Volumes: []corev1.Volume{
				{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			},
		},
		Status: corev1.PodStatus{Phase: "Pending", QOSClass: "BestEffort"},
	}
}

func BenchmarkCreatedPod(b *testing.B) {
	p := NewPlan(&corev1.Pod{}, fieldpath.NewSet(fieldpath.MakePathOrDie("status")))
	obj, w := pod(), Writer{Manager: "kubectl-create", APIVersion: "v1", Time: time.Now()}
	b.ReportAllocs()
	for b.Loop() {
		p.Created(obj, w)
	}
}

func BenchmarkCreatedPodUpstream(b *testing.B) {
	f := upstream(b, corev1.SchemeGroupVersion.WithKind("Pod"), "", fieldpath.NewSet(fieldpath.MakePathOrDie("status")))
	obj := pod()
	b.ReportAllocs()
	for b.Loop() {
		f.UpdateNoErrors(&corev1.Pod{}, obj, "kubectl-create")
	}
}

func BenchmarkUpdatedPodStatus(b *testing.B) {
	p := NewPlan(&corev1.Pod{}, fieldpath.NewSet(fieldpath.MakePathOrDie("status")))
	old := pod()
	entries, _ := p.Created(old, Writer{Manager: "kubectl-create", APIVersion: "v1", Time: time.Now()})
	status := NewPlan(&corev1.Pod{}, fieldpath.NewSet(fieldpath.MakePathOrDie("spec")))
	obj := runtime.Object(old.DeepCopy()).(*corev1.Pod)
	obj.Status = corev1.PodStatus{
		Phase: "Running", HostIP: "10.0.0.1", PodIP: "10.0.0.2", PodIPs: []corev1.PodIP{{IP: "10.0.0.2"}},
		StartTime: &metav1.Time{Time: time.Now()},
		Conditions: []corev1.PodCondition{
			{Type: "Ready", Status: "True"},
			{Type: "Initialized", Status: "True"},
			{Type: "ContainersReady", Status: "True"},
			{Type: "PodScheduled", Status: "True"},
		},
	}
	w := Writer{Manager: "kubelet", APIVersion: "v1", Subresource: "status", Time: time.Now()}
	b.ReportAllocs()
	for b.Loop() {
		status.Updated(old, obj, entries, w)
	}
}
