package controller

import (
	"cmp"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/config"
)

// The children's specs contain the API server's defaults, so that a child is up to date exactly when its spec equals
// the spec made here.

const nobody int64 = 65534

func childMeta(part, owner buildbarn.Part) metav1.ObjectMeta {
	kind := buildbarn.GroupVersion.WithKind(kindOf(owner))
	return metav1.ObjectMeta{Name: part.GetName(), Namespace: part.GetNamespace(), Labels: buildbarn.Labels(part),
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, kind)}}
}

// kindOf returns the kind of a part. Objects from a cache have no TypeMeta.
func kindOf(p buildbarn.Part) string {
	switch p.(type) {
	case *buildbarn.BuildbarnScheduler:
		return "BuildbarnScheduler"
	case *buildbarn.BuildbarnWorker:
		return "BuildbarnWorker"
	case *buildbarn.BuildbarnStorage:
		return "BuildbarnStorage"
	case *buildbarn.BuildbarnFrontend:
		return "BuildbarnFrontend"
	}
	return "BuildbarnBrowser"
}

// copyOf returns the immutable copy of the configuration that the pods mount.
func (p *plan) copyOf(files map[string]string, hash string) *corev1.ConfigMap {
	c := &corev1.ConfigMap{ObjectMeta: childMeta(p.part, p.o.Part), Data: files, Immutable: new(true)}
	c.Name = p.copyName(hash)
	c.Annotations = map[string]string{buildbarn.AnnotationConfig: hash}
	return c
}

// mounts are the inputs of a pod template besides the spec: the copy of the configuration, and the hash of the trusted
// authorities.
type mounts struct{ configMap, hash, authorities string }

func (p *plan) mounts(hash string) mounts { return mounts{p.copyName(hash), hash, p.authorities} }

func deployment(part, owner buildbarn.Part, m mounts, replicas int32) *appsv1.Deployment {
	history, deadline := int32(2), int32(600)
	surge, none := intstr.FromString("25%"), intstr.FromInt32(0)
	return &appsv1.Deployment{ObjectMeta: childMeta(part, owner), Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: buildbarn.Labels(part)},
		Template: template(part, m),
		// A pod is only removed when its successor is ready, so a pod that cannot start replaces nothing.
		Strategy: appsv1.DeploymentStrategy{
			Type:          appsv1.RollingUpdateDeploymentStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: &none, MaxSurge: &surge},
		},
		RevisionHistoryLimit: &history, ProgressDeadlineSeconds: &deadline,
	}}
}

// statefulSet starts and stops its pods in parallel. It updates them one by one, each when the previous one is ready.
func statefulSet(s *buildbarn.BuildbarnStorage, owner buildbarn.Part, m mounts, replicas int32) *appsv1.StatefulSet {
	return &appsv1.StatefulSet{ObjectMeta: childMeta(s, owner), Spec: appsv1.StatefulSetSpec{
		Replicas: &replicas, ServiceName: s.Name, Selector: &metav1.LabelSelector{MatchLabels: buildbarn.Labels(s)},
		Template:             template(s, m),
		VolumeClaimTemplates: claimTemplates(s), PodManagementPolicy: appsv1.ParallelPodManagement,
		UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType},
	}}
}

func claimTemplates(s *buildbarn.BuildbarnStorage) []corev1.PersistentVolumeClaim {
	if len(s.Spec.VolumeClaimTemplates) > 0 {
		return s.Spec.VolumeClaimTemplates
	}
	claim := func(name string, size resource.Quantity) corev1.PersistentVolumeClaim {
		return corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: s.Spec.StorageClassName,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: size}},
		}}
	}
	return []corev1.PersistentVolumeClaim{claim("cas", *s.Spec.CASSize), claim("ac", *s.Spec.ACSize)}
}

func template(part buildbarn.Part, m mounts) corev1.PodTemplateSpec {
	spec := part.Pods()
	no, yes, grace, mode := false, true, int64(corev1.DefaultTerminationGracePeriodSeconds),
		corev1.ConfigMapVolumeSourceDefaultMode
	t := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{
			Labels: buildbarn.Labels(part), Annotations: map[string]string{buildbarn.AnnotationConfig: m.hash},
		},
		Spec: corev1.PodSpec{
			Volumes: []corev1.Volume{
				{Name: "configs", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: m.configMap}, DefaultMode: &mode}}},
			},
			RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSClusterFirst,
			SchedulerName:   corev1.DefaultSchedulerName,
			SecurityContext: &corev1.PodSecurityContext{}, TerminationGracePeriodSeconds: &grace,
			// As process 1 the programs ignore SIGTERM, and neither drain nor persist: they start themselves again as
			// a child, which does not get the signal (pkg/program/run_main_linux.go of bb-storage).
			ShareProcessNamespace: &yes,
			// The programs do not use the API.
			AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
			ImagePullSecrets: spec.ImagePullSecrets, NodeSelector: spec.NodeSelector, Tolerations: spec.Tolerations,
		},
	}
	switch p := part.(type) {
	case *buildbarn.BuildbarnScheduler:
		t.Spec.Containers = []corev1.Container{
			serving(container("scheduler", spec.Image, spec.Resources, spec.ImagePullPolicy, config.Scheduler),
				port("client-grpc", buildbarn.PortSchedulerClient), port("worker-grpc", buildbarn.PortSchedulerWorker),
				port("http", buildbarn.PortSchedulerHTTP)),
		}
	case *buildbarn.BuildbarnFrontend:
		t.Spec.Containers = []corev1.Container{
			serving(container("storage", spec.Image, spec.Resources, spec.ImagePullPolicy, config.Frontend),
				port("grpc", buildbarn.PortFrontend)),
		}
	case *buildbarn.BuildbarnBrowser:
		t.Spec.Containers = []corev1.Container{
			serving(container("browser", spec.Image, spec.Resources, spec.ImagePullPolicy, config.Browser),
				port("http", buildbarn.PortBrowser)),
		}
	case *buildbarn.BuildbarnStorage:
		storagePod(p, &t.Spec)
	case *buildbarn.BuildbarnWorker:
		workerPod(p, &t)
	}
	if spec.TLS != nil {
		withCertificate(&t, spec.TLS.SecretName, m.authorities)
	}
	return t
}

func container(name, image string, resources corev1.ResourceRequirements, pull corev1.PullPolicy,
	file string) corev1.Container {
	c := corev1.Container{Name: name, Image: image, ImagePullPolicy: pull, Resources: resources,
		TerminationMessagePath:   corev1.TerminationMessagePathDefault,
		TerminationMessagePolicy: corev1.TerminationMessageReadFile}
	if file != "" {
		c.Args = []string{"/config/" + file}
		c.VolumeMounts = []corev1.VolumeMount{{Name: "configs", MountPath: "/config/", ReadOnly: true}}
	}
	return c
}

func port(name string, number int32) corev1.ContainerPort {
	return corev1.ContainerPort{Name: name, ContainerPort: number, Protocol: corev1.ProtocolTCP}
}

// serving adds ports, and a startup probe of the first one.
func serving(c corev1.Container, ports ...corev1.ContainerPort) corev1.Container {
	c.Ports = ports
	c.StartupProbe = &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{
			TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(ports[0].ContainerPort)},
		},
		PeriodSeconds: 1, TimeoutSeconds: 1, SuccessThreshold: 1, FailureThreshold: 300,
	}
	return c
}

func shell(image string, pull corev1.PullPolicy, command string, mounts ...corev1.VolumeMount) corev1.Container {
	c := container("volume-init", image, corev1.ResourceRequirements{}, pull, "")
	c.Command, c.VolumeMounts = []string{"sh", "-c", command}, mounts
	return c
}

func storagePod(s *buildbarn.BuildbarnStorage, pod *corev1.PodSpec) {
	mounts := []corev1.VolumeMount{{Name: "cas", MountPath: "/storage-cas"}, {Name: "ac", MountPath: "/storage-ac"}}
	pod.InitContainers = []corev1.Container{shell(s.Spec.VolumeInitImage, s.Spec.ImagePullPolicy,
		"mkdir -m 0700 -p /storage-cas/persistent_state /storage-ac/persistent_state", mounts...)}
	c := container("storage", s.Spec.Image, s.Spec.Resources, s.Spec.ImagePullPolicy, config.Storage)
	c.VolumeMounts = append(c.VolumeMounts, mounts...)
	pod.Containers = []corev1.Container{serving(c, port("grpc", buildbarn.PortStorage))}
}

func workerPod(w *buildbarn.BuildbarnWorker, t *corev1.PodTemplateSpec) {
	pod, s := &t.Spec, &w.Spec
	t.Labels[buildbarn.LabelInstance] = s.Instance
	pod.TerminationGracePeriodSeconds = new(int64(s.DrainSeconds))
	for _, name := range []string{"worker", "empty"} {
		pod.Volumes = append(pod.Volumes, corev1.Volume{
			Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
		})
	}
	work := corev1.VolumeMount{Name: "worker", MountPath: "/worker"}
	install := container("bb-runner-installer", s.RunnerInstallerImage, corev1.ResourceRequirements{}, s.ImagePullPolicy,
		"")
	install.VolumeMounts = []corev1.VolumeMount{{Name: "empty", MountPath: "/bb/"}}
	pod.InitContainers = []corev1.Container{install, shell(s.VolumeInitImage, s.ImagePullPolicy,
		"mkdir -pm 0777 /worker/build && mkdir -pm 0700 /worker/cache && chmod 0777 /worker", work)}

	worker := container("worker", s.Image, s.Resources, s.ImagePullPolicy, config.Worker(s.Instance))
	worker.VolumeMounts = append(worker.VolumeMounts, work)
	worker.Env = []corev1.EnvVar{fromField("NODE_NAME", "spec.nodeName"), fromField("POD_NAME", "metadata.name")}

	// The worker runs as another user than the runner, whatever the image says: they share a process namespace, in
	// which a process may read what belongs to its user's other processes.
	if s.TLS != nil {
		worker.SecurityContext = &corev1.SecurityContext{RunAsUser: new(int64(0))}
	}

	user, no := nobody, false
	runner := container("runner", s.RunnerImage, s.RunnerResources, s.ImagePullPolicy, config.Runner(s.Instance))
	runner.Command = []string{"/bb/bb_runner"}
	runner.SecurityContext = &corev1.SecurityContext{RunAsUser: &user, AllowPrivilegeEscalation: &no}
	runner.VolumeMounts = append(runner.VolumeMounts, work, corev1.VolumeMount{
		Name: "empty", MountPath: "/bb", ReadOnly: true,
	})
	pod.Containers = []corev1.Container{worker, runner}
}

func fromField(name, path string) corev1.EnvVar {
	return corev1.EnvVar{
		Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}},
	}
}

// service returns a part's Service, or nil for workers.
func service(part, owner buildbarn.Part) *corev1.Service {
	s := &corev1.Service{ObjectMeta: childMeta(part, owner), Spec: corev1.ServiceSpec{Selector: buildbarn.Labels(part)}}
	add := func(name string, number int32) {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{
			Name:       name,
			Port:       number,
			TargetPort: intstr.FromInt32(number),
			Protocol:   corev1.ProtocolTCP,
		})
	}
	switch p := part.(type) {
	case *buildbarn.BuildbarnScheduler:
		s.Spec.Type = p.Spec.ServiceType
		add("client-grpc", buildbarn.PortSchedulerClient)
		add("worker-grpc", buildbarn.PortSchedulerWorker)
		add("http", buildbarn.PortSchedulerHTTP)
	case *buildbarn.BuildbarnFrontend:
		s.Spec.Type = p.Spec.ServiceType
		add("grpc", buildbarn.PortFrontend)
	case *buildbarn.BuildbarnBrowser:
		s.Spec.Type = p.Spec.ServiceType
		add("http", buildbarn.PortBrowser)
	case *buildbarn.BuildbarnStorage:
		// Each DNS name belongs to one pod, which clients may reach as soon as it listens.
		s.Spec.Type, s.Spec.ClusterIP, s.Spec.PublishNotReadyAddresses = corev1.ServiceTypeClusterIP, corev1.ClusterIPNone,
			true
		add("grpc", buildbarn.PortStorage)
	default:
		return nil
	}
	s.Spec.Type = cmp.Or(s.Spec.Type, corev1.ServiceTypeClusterIP)
	return s
}

func ingress(part, owner buildbarn.Part, host string) *networkingv1.Ingress {
	prefix := networkingv1.PathTypePrefix
	backend := networkingv1.IngressBackend{
		Service: &networkingv1.IngressServiceBackend{
			Name: part.GetName(), Port: networkingv1.ServiceBackendPort{Name: "http"},
		},
	}
	return &networkingv1.Ingress{
		ObjectMeta: childMeta(part, owner), Spec: networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{{Host: host,
			IngressRuleValue: networkingv1.IngressRuleValue{
				HTTP: &networkingv1.HTTPIngressRuleValue{
					Paths: []networkingv1.HTTPIngressPath{{Path: "/", PathType: &prefix, Backend: backend}},
				},
			}}}},
	}
}
