package pod

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/coracle-dev/coracle/pkg/node/runtime/fake"
	"github.com/coracle-dev/coracle/pkg/node/volume"
)

func nodeWith(pods string) *corev1.Node {
	n := &corev1.Node{}
	n.Name, n.Labels = "node", map[string]string{"disk": "ssd"}
	n.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("1Gi"),
		"ephemeral-storage": resource.MustParse("1Gi"), "pods": resource.MustParse(pods)}
	return n
}

func wants(name, amount string) *corev1.Pod {
	p := spec(corev1.RestartPolicyAlways, nil, []string{"a"})
	p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceName(name): resource.MustParse(amount)}
	return p
}

func TestAdmit(t *testing.T) {
	with := func(f func(*corev1.Pod)) *corev1.Pod {
		p := spec(corev1.RestartPolicyAlways, nil, []string{"a"})
		f(p)
		return p
	}
	port := func(number int32, ip string, protocol corev1.Protocol) *corev1.Pod {
		return with(func(p *corev1.Pod) {
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: number, HostIP: ip, Protocol: protocol}}
		})
	}
	tests := map[string]struct {
		pod    *corev1.Pod
		others []*corev1.Pod
		pods   string
		reason string
		text   string
	}{
		"nothing asked": {pod: with(func(*corev1.Pod) {})},
		"linux":         {pod: with(func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Linux} })},
		"windows": {
			pod: with(func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Windows} }), reason: "PodOSNotSupported",
			text: "OS field doesn't match node OS",
		},
		"label of another OS": {
			pod:    with(func(p *corev1.Pod) { p.Labels = map[string]string{"kubernetes.io/os": "windows"} }),
			reason: "PodOSSelectorNodeLabelDoesNotMatch",
		},
		"label of this OS": {
			pod: with(func(p *corev1.Pod) { p.Labels = map[string]string{"kubernetes.io/os": "linux"} }),
		},
		"selector fits": {pod: with(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} })},
		"selector does not fit": {
			pod: with(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "tape"} }), reason: "NodeAffinity",
		},
		"as much as there is": {pod: wants("cpu", "1"), others: []*corev1.Pod{wants("cpu", "1")}},
		"cpu": {
			pod: wants("cpu", "1001m"), others: []*corev1.Pod{wants("cpu", "1")}, reason: "OutOfcpu",
			text: "requested: 1001, used: 1000, capacity: 2000",
		},
		"memory":               {pod: wants("memory", "2Gi"), reason: "OutOfmemory"},
		"storage":              {pod: wants("ephemeral-storage", "2Gi"), reason: "OutOfephemeral-storage"},
		"a resource of nobody": {pod: wants("example.com/gpu", "1")},
		"one pod too many": {
			pod: wants("cpu", "1m"), others: []*corev1.Pod{wants("cpu", "1m")}, pods: "1", reason: "OutOfpods",
			text: "used: 1, capacity: 1",
		},
		"a port twice": {
			pod: port(80, "", "TCP"), others: []*corev1.Pod{port(80, "0.0.0.0", "TCP")}, reason: "NodePorts",
		},
		"another protocol": {pod: port(80, "", "TCP"), others: []*corev1.Pod{port(80, "", "UDP")}},
		"another address":  {pod: port(80, "192.0.2.1", "TCP"), others: []*corev1.Pod{port(80, "192.0.2.2", "TCP")}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if tt.pods == "" {
				tt.pods = "110"
			}
			v := Admit(tt.pod, nodeWith(tt.pods), tt.others)
			if tt.reason == "" {
				require.Nil(t, v)
				return
			}
			require.NotNil(t, v)
			require.Equal(t, tt.reason, v.Reason)
			require.Contains(t, v.Message, tt.text)
		})
	}
}

func TestSysctls(t *testing.T) {
	tests := map[string]struct {
		unsafe           []string
		name             string
		hostNet, hostIPC bool
		ownUsers         bool
		refused          string
	}{
		"safe":               {name: "net.ipv4.ip_unprivileged_port_start"},
		"safe, with slashes": {name: "net/ipv4/ip_unprivileged_port_start"},
		"safe, of the host's network": {
			name: "net.ipv4.tcp_syncookies", hostNet: true, refused: "not allowed with host Net enabled",
		},
		"safe, of the host's IPC": {
			name: "kernel.shm_rmid_forced", hostIPC: true, refused: "not allowed with host IPC enabled",
		},
		"IPC of a host network pod": {name: "kernel.shm_rmid_forced", hostNet: true},
		"unsafe":                    {name: "net.core.somaxconn", refused: `"net.core.somaxconn" not allowlisted`},
		"of the node":               {name: "vm.swappiness", refused: "not allowlisted"},
		"allowed":                   {unsafe: []string{"net.core.somaxconn"}, name: "net.core.somaxconn"},
		"allowed prefix":            {unsafe: []string{"kernel.msg*"}, name: "kernel.msgmax"},
		"prefix of the host's IPC": {
			unsafe: []string{"kernel.msg*"}, name: "kernel.msgmax", hostIPC: true, refused: "host IPC",
		},
		"beyond the prefix":  {unsafe: []string{"kernel.msg*"}, name: "kernel.sem", refused: "not allowlisted"},
		"all of the network": {unsafe: []string{"net.*"}, name: "net.ipv4.tcp_max_syn_backlog"},
		"of the host's users": {
			unsafe: []string{"user.*"}, name: "user.max_user_namespaces", refused: "not allowed with host User enabled",
		},
		"of the pod's users":        {unsafe: []string{"user.*"}, name: "user.max_user_namespaces", ownUsers: true},
		"of its users, not allowed": {name: "user.max_user_namespaces", ownUsers: true, refused: "not allowlisted"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s, err := NewSysctls(tt.unsafe)
			require.NoError(t, err)
			p := spec(corev1.RestartPolicyAlways, nil, []string{"a"})
			p.Spec.HostNetwork, p.Spec.HostIPC, p.Spec.HostUsers = tt.hostNet, tt.hostIPC, new(!tt.ownUsers)
			require.Nil(t, s.refuse(p))
			p.Spec.SecurityContext = &corev1.PodSecurityContext{
				Sysctls: []corev1.Sysctl{{Name: "net.ipv4.tcp_rmem"}, {Name: tt.name, Value: "1"}},
			}
			if tt.hostNet || tt.hostIPC {
				p.Spec.SecurityContext.Sysctls = p.Spec.SecurityContext.Sysctls[1:]
			}
			v := s.refuse(p)
			if tt.refused == "" {
				require.Nil(t, v)
				return
			}
			require.Equal(t, "SysctlForbidden", v.Reason)
			require.Contains(t, v.Message, tt.refused)
		})
	}
	for _, bad := range []string{
		"vm.swappiness", "kernel.*", "*", "kernel.domainname", "net.core.somaxconn=1", "Net.core", "net..x", "net.*.x", "",
	} {
		_, err := NewSysctls([]string{bad})
		require.Error(t, err, bad)
	}
}

func TestAppArmor(t *testing.T) {
	profile := func(kind corev1.AppArmorProfileType, name *string) *corev1.AppArmorProfile {
		return &corev1.AppArmorProfile{Type: kind, LocalhostProfile: name}
	}
	unconfined := profile(corev1.AppArmorProfileTypeUnconfined, nil)
	def := profile(corev1.AppArmorProfileTypeRuntimeDefault, nil)
	local := profile(corev1.AppArmorProfileTypeLocalhost, ptr.To("web"))
	for name, tt := range map[string]struct {
		pod, container *corev1.AppArmorProfile
		annotation     string
		want           string
		needs          bool // the pod is refused where the node has no AppArmor
		refused        bool // everywhere
	}{
		"none":                    {},
		"pod unconfined":          {pod: unconfined, want: "unconfined"},
		"pod default":             {pod: def, needs: true},
		"container's over pod's":  {pod: def, container: unconfined, want: "unconfined"},
		"local":                   {container: local, want: "localhost/web", needs: true},
		"local without a name":    {container: profile(local.Type, nil), want: "localhost/", needs: true, refused: true},
		"annotation":              {annotation: "localhost/web", pod: unconfined, want: "localhost/web", needs: true},
		"annotation default":      {annotation: "runtime/default", pod: unconfined, needs: true},
		"annotation unconfined":   {annotation: "unconfined", pod: def, want: "unconfined"},
		"container over its note": {annotation: "unconfined", container: local, want: "localhost/web", needs: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := spec(corev1.RestartPolicyAlways, []string{"i"}, nil)
			p.Spec.SecurityContext = &corev1.PodSecurityContext{AppArmorProfile: tt.pod}
			c := &p.Spec.InitContainers[0]
			c.SecurityContext = &corev1.SecurityContext{AppArmorProfile: tt.container}
			if tt.annotation != "" {
				p.Annotations = map[string]string{corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + "i": tt.annotation}
			}
			require.Equal(t, tt.want, appArmorName(appArmor(p, c)))
			require.Equal(t, tt.refused, modules{}.refuseAppArmor(p) != nil)
			v := modules{noAppArmor: "it is off"}.refuseAppArmor(p)
			require.Equal(t, tt.needs, v != nil)
			if v != nil {
				require.Equal(t, Verdict{Reason: "AppArmor", Message: "Cannot enforce AppArmor: it is off"}, *v)
			}
		})
	}
}

// TestAdmitServedByDevices checks that a claim's devices do not count against extended resources of device plugins.
func TestAdmitServedByDevices(t *testing.T) {
	const gpu corev1.ResourceName = "example.com/gpu"
	node := &corev1.Node{Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{gpu: resource.MustParse("1")}}}
	asks := func(served bool) *corev1.Pod {
		list := corev1.ResourceList{gpu: resource.MustParse("1")}
		p := &corev1.Pod{
			Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: list, Limits: list}}},
			},
		}
		if served {
			p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{
				RequestMappings: []corev1.ContainerExtendedResourceRequest{
					{ContainerName: "c", ResourceName: string(gpu), RequestName: "r"}},
			}
		}
		return p
	}
	require.Nil(t, Admit(asks(true), node, []*corev1.Pod{asks(false), asks(true)}))
	require.Nil(t, Admit(asks(false), node, []*corev1.Pod{asks(true)}))
	require.NotNil(t, Admit(asks(false), node, []*corev1.Pod{asks(false), asks(true)}))
	served := asks(true)
	require.Empty(t, byPlugins(served, &served.Spec.Containers[0]).Resources.Limits)
	require.Len(t, served.Spec.Containers[0].Resources.Limits, 1, "the pod stays as it is")
}

type full struct{ volume.Plugin }

func (full) Name() string                           { return "full" }
func (full) CanSupport(s *corev1.VolumeSource) bool { return s.CSI != nil }
func (full) Setup(context.Context, volume.Pod, *volume.Volume) (volume.Mounted, error) {
	return volume.Mounted{}, fmt.Errorf("%w: full", volume.ErrAttachLimit)
}
func (full) Teardown(context.Context, *volume.Volume) error { return nil }

func TestRejectedForAttachLimit(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		r.stop()
		r.volumePlugins = []volume.Plugin{full{}}
		r.start()
		p := podOf("p", "sleep", "1000")
		p.Spec.Volumes = []corev1.Volume{
			{Name: "v", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "x"}}},
		}
		r.create(p)
		r.pass(time.Minute)
		p = r.pod(p.Name)
		require.Equal(t, corev1.PodFailed, p.Status.Phase)
		require.Equal(t, "VolumeAttachmentLimitExceeded", p.Status.Reason)
		require.Contains(t, p.Status.Message, "Pod was rejected: Node has reached its volume attachment limit")
		require.Contains(t, r.events.text(), "VolumeAttachmentLimitExceeded")
		r.delete("p", 0)
		require.Nil(t, r.pod("p"))
	})
}

// A rejected pod has no containers, also after a restart of the agent: kubectl would show ContainerCreating.
func TestRejectedStaysRejected(t *testing.T) {
	with(t, fake.Config{}, func(r *rig) {
		p := podOf("p", "sleep", "1000")
		p.Spec.OS = &corev1.PodOS{Name: corev1.Windows}
		r.create(p)
		for range 2 {
			r.pass(time.Minute)
			s := r.pod(p.Name).Status
			require.Equal(t, []string{"Failed", "PodOSNotSupported"}, []string{string(s.Phase), s.Reason})
			require.Empty(t, s.ContainerStatuses)
			r.restart()
		}
	})
}
