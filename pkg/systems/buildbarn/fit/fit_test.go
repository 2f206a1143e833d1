package fit

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/check/protocol"
)

var at = protocol.Place{Field: "f", Line: "x.jsonnet:1"}

func servers(addresses ...string) (list []protocol.Server) {
	for _, a := range addresses {
		list = append(list, protocol.Server{Place: at, Address: a})
	}
	return list
}

func calls(addresses ...string) *protocol.Facts {
	f := &protocol.Facts{}
	for _, a := range addresses {
		f.Clients = append(f.Clients, protocol.Client{Place: at, Address: a})
	}
	return f
}

func ports(numbers ...int32) (list []corev1.ServicePort) {
	for _, n := range numbers {
		list = append(list, corev1.ServicePort{Name: "grpc", Port: n})
	}
	return list
}

func TestServers(t *testing.T) {
	for _, test := range []struct {
		servers       []protocol.Server
		problem, warn string
	}{
		{servers(":8982", ":8983"), "", ""},
		{servers("0.0.0.0:8982", "[::]:8983", "127.0.0.1:7"), "", ""},
		{servers("pod-0:8982", ":8983"), "", ""},
		{servers(":grpc"), "", ""}, // the port's number is unknown
		{servers("nonsense"), "", ""},
		{nil, "", ""}, // the program itself refuses it
		{
			servers(":8983"),
			"x.jsonnet:1: f: no server listens on port 8982, which the Service and the startup probe use: add " +
				"':8982' to a server's listenAddresses", "",
		},
		{servers("127.0.0.1:8982"), "x.jsonnet:1: f: 127.0.0.1 can only be reached from within the pod", ""},
		{servers("localhost:8982", ":8982", ":8983"), "port 8982 is already used by f in x.jsonnet:1", ""},
		{servers(":8982"), "", "x.jsonnet:1: f: no server listens on port 8983 (grpc), which the Service uses"},
		{
			servers(":8982", ":8983", ":8983"),
			"port 8983 is already used by f in x.jsonnet:1, in the same pod: choose another port", "",
		},
		{servers(":8982", ":8983", "10.0.0.1:7", "10.0.0.2:7", ":0", ":0"), "", ""},
		{servers(":8982", "localhost:8983"), "", "no server listens on port 8983"},
	} {
		problem, warnings := Compare([]*protocol.Facts{{Servers: test.servers}},
			Around{Component: "scheduler", Ports: ports(8982, 8983)})
		if test.problem == "" {
			require.Empty(t, problem, test.servers)
		} else {
			require.Contains(t, problem, test.problem)
		}
		if test.warn == "" {
			require.Empty(t, warnings, test.servers)
		} else {
			require.Len(t, warnings, 1)
			require.Contains(t, warnings[0], test.warn)
		}
	}
	// The containers of a pod share its ports.
	problem, _ := Compare([]*protocol.Facts{{Servers: servers(":9980")}, {Servers: servers(":9980")}},
		Around{Component: "worker"})
	require.Contains(t, problem, "port 9980 is already used by")
}

func TestRunners(t *testing.T) {
	worker := func(socket string) *protocol.Facts {
		return &protocol.Facts{
			Clients: []protocol.Client{
				{
					Place:   protocol.Place{Field: "buildDirectories[0].runners[0].endpoint.address", Line: "worker.jsonnet:9"},
					Address: socket,
				},
			},
		}
	}
	runner := &protocol.Facts{Servers: []protocol.Server{{Place: at, Path: "/worker/runner"}}}
	for socket, want := range map[string]string{
		"unix:///worker/runner":   "",
		"unix:///worker/./runner": "",
		"unix:worker/runner":      "",
		"runner.example.com:80":   "",
		"unix:///worker/runer": "worker.jsonnet:9: buildDirectories[0].runners[0].endpoint.address: the pod's runner " +
			"does not listen on /worker/runer: it listens on /worker/runner (listenPaths in the runner's file)",
	} {
		problem, warnings := Compare([]*protocol.Facts{worker(socket), runner}, Around{Component: "worker", Namespace: "ns"})
		require.Equal(t, want, problem)
		require.Empty(t, warnings)
		problem, _ = Compare([]*protocol.Facts{worker(socket), nil}, Around{Component: "worker", Namespace: "ns"})
		require.Empty(t, problem, "where a runner listens whose fields are not compared is not known")
	}
}

func TestSizes(t *testing.T) {
	around := Around{Component: "storage", Claims: map[string]int64{"/storage-cas": 100 << 20, "/storage-ac": 10 << 20}}
	files := func(list ...protocol.File) []*protocol.Facts {
		for i := range list {
			list[i].Place = at
		}
		return []*protocol.Facts{{Files: list}}
	}
	for want, f := range map[string][]*protocol.Facts{
		"": files(protocol.File{Path: "/storage-cas/a", Bytes: 60 << 20},
			protocol.File{Path: "/storage-cas/b", Bytes: 40 << 20}, protocol.File{Path: "/storage-casual/b", Bytes: 1 << 40},
			protocol.File{Path: "/tmp/b", Bytes: 1 << 62}),
		"x.jsonnet:1: f: /storage-cas/b has 41 MiB, together with other files 101 MiB, but the claim at /storage-cas has " +
			"100 MiB: lower sizeBytes, or enlarge the claim": files(
			protocol.File{Path: "/storage-cas/a", Bytes: 60 << 20}, protocol.File{Path: "/storage-cas/b", Bytes: 41 << 20}),
		"x.jsonnet:1: f: /storage-ac/../storage-ac/b has 11 MiB, together with other files 11 MiB, but the claim at " +
			"/storage-ac has 10 MiB: lower sizeBytes, or enlarge the claim": files(
			protocol.File{Path: "/storage-ac/../storage-ac/b", Bytes: 11 << 20}),
	} {
		problem, _ := Compare(f, around)
		require.Equal(t, want, problem)
	}
	problem, _ := Compare(files(protocol.File{Path: "/storage-cas/a", Bytes: 1<<63 - 1},
		protocol.File{Path: "/storage-cas/b", Bytes: 1<<63 - 1}), around)
	require.Contains(t, problem, "lower sizeBytes")
}

func service(name, kind, ip string, numbers ...int32) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{ClusterIP: ip, Ports: ports(numbers...)},
	}
	if kind != "" {
		yes := true
		s.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: buildbarn.GroupVersion.String(), Kind: kind, Name: name, Controller: &yes},
		}
	}
	return s
}

func TestClients(t *testing.T) {
	around := Around{
		Namespace: "ns", Component: "frontend", Storage: map[string]int32{"storage": 2}, Services: map[string]*corev1.Service{
			"scheduler": service("scheduler", "BuildbarnScheduler", "10.0.0.1", 8982, 8983),
			"storage":   service("storage", "BuildbarnStorage", corev1.ClusterIPNone, 8981),
			"mine":      service("mine", "", "10.0.0.2", 80),
			"far": {
				ObjectMeta: metav1.ObjectMeta{Name: "far"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName},
			},
		},
	}
	for address, want := range map[string]struct{ problem, warn string }{
		"scheduler:8982":                              {},
		"dns:///scheduler.ns:8982":                    {},
		"scheduler.ns.svc.cluster.local.:8982":        {},
		"SCHEDULER.ns.svc:8982":                       {},
		"storage-1.storage:8981":                      {},
		"storage-1.storage.ns:8981":                   {},
		"storage-0.storage.ns.svc.cluster.local:8981": {},
		"mine:80":                        {},
		"far:1":                          {},
		"10.1.2.3:8982":                  {},
		"[::1]:8982":                     {},
		"localhost:1":                    {},
		"unix:///worker/runner":          {},
		"xds:///scheduler":               {},
		"cas.example.com:443":            {},
		"example.com":                    {},
		"scheduler.other:8982":           {},
		"scheduler.other.svc:8982":       {},
		"x-1.example.com:443":            {},
		"scheduler.ns.svc.my.domain:443": {},
		"scheduler:8992": {
			problem: "x.jsonnet:1: f: the Service scheduler of BuildbarnScheduler scheduler has no port 8992; it has 8982 " +
				"(grpc), 8983 (grpc)",
		},
		"scheduler.ns:8992": {problem: "has no port 8992"},
		"scheduler":         {problem: "has no port 443"},
		"scheduler:8983":    {warn: "port 8983 of a scheduler is grpc; frontends call port 8982"},
		"shceduler:8982": {
			warn: "x.jsonnet:1: f: shceduler:8982 names no existing Service: there is no Service shceduler in this namespace",
		},
		"storage-1.storag:8981": {warn: "there is no Service storag"},
		"storage-2.storage:8981": {
			warn: "there is no pod storage-2: BuildbarnStorage storage has 2 (replicas), the last is storage-1",
		},
		// Its pods may listen on that port as well.
		"storage-0.storage:8999": {warn: "the Service storage has no port 8999; it has 8981 (grpc)"},
		// The port may be added soon.
		"mine:81": {warn: "the Service mine has no port 81"},
	} {
		problem, warnings := Compare([]*protocol.Facts{calls(address)}, around)
		if want.problem == "" {
			require.Empty(t, problem, address)
		} else {
			require.Contains(t, problem, want.problem)
		}
		if want.warn == "" {
			require.Empty(t, warnings, address)
		} else {
			require.Len(t, warnings, 1, address)
			require.Contains(t, warnings[0], want.warn)
		}
	}
	require.Equal(t, []string{"a", "b", "ns", "storage"},
		Names([]*protocol.Facts{
			calls("a:1", "b.ns:1", "c.d:1", "1.2.3.4:5", "storage-0.storage:1", "x-0.ns:2"), nil,
		}, "ns")[:4])
	// In a namespace with the Service's name both readings are possible.
	require.Equal(t, []target{{"storage", "storage-0", 1}, {"storage-0", "", 1}},
		targets("storage-0.storage:1", "storage"))
}
