package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/jointoken"
	"github.com/coracle-dev/coracle/pkg/base/pki"
	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/node/dns"
)

func TestJoin(t *testing.T) {
	c := newCluster(t)
	server := c.serve(t, c.handler(http.NotFoundHandler()))

	i := c.machine(t, server.URL, t.TempDir(), "n1")
	require.NoError(t, i.join(t.Context()))
	j := i.present.Load()
	require.Equal(t, "cluster.local", j.ClusterDomain)
	cert := certificate(t, j.Client)
	require.Equal(t, "system:node:n1", cert.Subject.CommonName)
	require.Equal(t, []string{nodesGroup}, cert.Subject.Organization)
	_, err := cert.Verify(x509.VerifyOptions{
		Roots: c.keys.Client.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	require.NoError(t, err)
	_, err = j.serving.Leaf.Verify(x509.VerifyOptions{Roots: c.keys.Node.Pool(), DNSName: "n1"})
	require.NoError(t, err)
	_, err = j.serving.Leaf.Verify(x509.VerifyOptions{Roots: c.keys.Server.Pool(), DNSName: "n1"})
	require.Error(t, err, "no node can pass for the API")

	fails := func(want string, change func(*identity)) {
		t.Helper()
		other := c.machine(t, server.URL, t.TempDir(), "n2")
		change(other)
		require.ErrorContains(t, other.join(t.Context()), want)
	}
	fails("nodeName", func(i *identity) { i.nodeName = "N_1" })
	fails("nodeIP", func(i *identity) { i.nodeIP = "here" })
	wrong, err := jointoken.New(c.keys.Server.Bundle())
	require.NoError(t, err)
	fails("coracle token create", func(i *identity) { i.token = wrong.String() })
	fails("not a join token", func(i *identity) { i.token = "swordfish" })
	other, err := pki.Load(t.TempDir())
	require.NoError(t, err)
	elsewhere, err := jointoken.New(other.Server.Bundle())
	require.NoError(t, err)
	fails("not the one that the token was made for", func(i *identity) { i.token = elsewhere.String() })
	server.Close()
	fails("no server answers", func(*identity) {})
}

// TestResume checks that, while no server answers, a machine that has joined resumes with its node name, and a
// machine that has not joined does not start.
func TestResume(t *testing.T) {
	c := newCluster(t)
	server := c.serve(t, c.handler(http.NotFoundHandler()))
	dir := t.TempDir()
	first := c.machine(t, server.URL, dir, "n1")
	require.NoError(t, first.join(t.Context()))
	server.Close()

	again := c.machine(t, server.URL, dir, "n1")
	again.token = ""
	require.NoError(t, again.enterOrResume(t.Context()))
	require.Equal(t, first.present.Load().joinAnswer, again.present.Load().joinAnswer)
	require.ErrorContains(t, c.machine(t, server.URL, dir, "n2").enterOrResume(t.Context()), "no server answers",
		"under another name")

	away := c.serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no quorum", http.StatusServiceUnavailable)
	}))
	again = c.machine(t, away.URL, dir, "n1")
	again.token = ""
	require.NoError(t, again.enterOrResume(t.Context()), "a proxy without servers behind it")
	proxy, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer proxy.Close()
	go func() {
		for {
			conn, err := proxy.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	again = c.machine(t, "https://"+proxy.Addr().String(), dir, "n1")
	again.token = ""
	require.NoError(t, again.enterOrResume(t.Context()), "a load balancer without servers behind it")
	deleted := c.serve(t,
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no member", http.StatusForbidden) }))
	again = c.machine(t, deleted.URL, dir, "n1")
	again.token = ""
	require.ErrorContains(t, again.enterOrResume(t.Context()), "no member")

	again = c.machine(t, server.URL, dir, "n1")
	again.token = ""
	require.ErrorContains(t, c.machine(t, server.URL, t.TempDir(), "n1").enterOrResume(t.Context()), "no server answers",
		"it never joined")
	require.NoError(t, os.WriteFile(filepath.Join(dir, lastAnswer), []byte("{}"), 0o600))
	require.ErrorContains(t, again.enterOrResume(t.Context()), lastAnswer)
}

// TestResumeThenAnotherCluster checks that a resumed machine joins with its token if the server belongs to another
// cluster, and that it starts anew.
func TestResumeThenAnotherCluster(t *testing.T) {
	old, next := newCluster(t), newCluster(t)
	server := old.serve(t, old.handler(http.NotFoundHandler()))
	dir := t.TempDir()
	require.NoError(t, old.machine(t, server.URL, dir, "n1").join(t.Context()))
	server.Close()
	var there atomic.Pointer[httptest.Server] // the server that every dial reaches
	machine := func(token string) *identity {
		i := next.machine(t, server.URL, dir, "n1")
		i.token = token
		i.servers.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			if s := there.Load(); s != nil {
				return (&net.Dialer{}).DialContext(ctx, network, s.Listener.Addr().String())
			}
			return nil, syscall.ECONNREFUSED
		}
		return i
	}
	resumes := func(token string) *identity {
		i := machine(token)
		require.NoError(t, i.enterOrResume(t.Context()))
		require.True(t, i.resumed)
		return i
	}
	wrong, moved := resumes(old.token.String()), resumes(next.token.String())

	there.Store(next.serve(t, next.handler(http.NotFoundHandler())))

	unknown := wrong.renew(t.Context(), wrong.present.Load().credentials)
	require.ErrorAs(t, unknown, new(x509.UnknownAuthorityError))
	require.False(t, wrong.joinsAnother(t.Context(), unknown), "the token is of neither")
	wrong.token = ""
	require.False(t, wrong.joinsAnother(t.Context(), unknown))
	moved.refused <- struct{}{} // as after a request with 401
	require.ErrorIs(t, moved.Run(t.Context()), errAnotherCluster)
	require.NoError(t, machine("").enter(t.Context()), "a member from now on")
}

// TestNameIsBoundToAMachine checks that a name is bound as long as the Node exists, also after a restart of the server.
func TestNameIsBoundToAMachine(t *testing.T) {
	c := newCluster(t)
	server := c.serve(t, c.handler(http.NotFoundHandler()))
	mineDir, otherDir := t.TempDir(), t.TempDir()
	join := func(dir, name string) (*identity, error) {
		i := c.machine(t, server.URL, dir, name)
		return i, i.join(t.Context())
	}

	first, err := join(mineDir, "n1")
	require.NoError(t, err)
	// A machine that is killed before it registers has not bound the name. Its certificates become invalid once
	// another machine registers.
	thief, err := join(otherDir, "n1")
	require.NoError(t, err)
	c.register(t, first)
	require.NoError(t, c.believes(t, first))
	require.ErrorContains(t, c.believes(t, thief), "coracle ctl delete node n1")

	_, err = join(mineDir, "n1")
	require.NoError(t, err, "the key on disk is what counts")
	_, err = join(otherDir, "n1")
	require.EqualError(t, err,
		"the node name n1 belongs to another machine: if that one is gone for good, free the name with `coracle ctl delete "+
			"node n1`; else choose another with --node-name")
	_, err = join(otherDir, "own")
	require.ErrorContains(t, err, "belongs to another machine", "the server's own node is taken even while it has no Node")

	c.remove("n1")
	require.ErrorContains(t, c.believes(t, first), "was deleted", "which shuts out who had it")
	second, err := join(otherDir, "n1")
	require.NoError(t, err, "and frees the name")
	require.NoError(t, c.believes(t, second), "for who has joined, to register")
	require.Error(t, c.believes(t, first))
	c.register(t, second)
	require.ErrorContains(t, c.believes(t, first), "another machine")

	// A Node without an owner, as one that a user created, accepts only a machine with a token.
	delete(c.nodes["n1"].Annotations, machineAnnotation)
	require.Error(t, c.believes(t, first))
	require.Error(t, c.believes(t, second))
	third, err := join(mineDir, "n1")
	require.NoError(t, err)
	require.NoError(t, c.believes(t, third))
}

// TestMembershipNeedsNoTokenTwice checks that a restarted machine is accepted by its certificate until its Node is
// deleted.
func TestMembershipNeedsNoTokenTwice(t *testing.T) {
	c := newCluster(t)
	server := c.serve(t, c.handler(http.NotFoundHandler()))
	dir, url := t.TempDir(), server.URL
	start := func(dir, name, token string) (*identity, error) {
		i := c.machine(t, url, dir, name)
		i.token = token
		return i, i.enter(t.Context())
	}
	good := c.token.String()

	_, err := start(dir, "n1", "")
	require.ErrorContains(t, err, "has not joined the cluster yet")
	_, err = start(t.TempDir(), "n1", "swordfish")
	require.Error(t, err)
	first, err := start(dir, "n1", good)
	require.NoError(t, err)
	c.register(t, first)
	info, err := os.Stat(filepath.Join(dir, machineCertificate))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	again, err := start(dir, "n1", "")
	require.NoError(t, err)
	require.NoError(t, c.believes(t, again))
	_, err = start(dir, "n1", "a token that has expired by now")
	require.NoError(t, err, "options stay as they were")
	_, err = start(dir, "n2", "")
	require.ErrorContains(t, err, "has joined as n1")
	// A stolen certificate is useless without the key, and so are the files of another machine.
	other := t.TempDir()
	for _, file := range []string{machineCertificate, serverAuthority} {
		data, err := os.ReadFile(filepath.Join(dir, file))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(other, file), data, 0o600))
	}
	_, err = start(other, "n1", "")
	require.ErrorContains(t, err, machineCertificate)

	c.remove("n1")
	_, err = start(dir, "n1", "")
	require.ErrorContains(t, err, "was deleted from the cluster")
	require.True(t, shutOut(err))
	back, err := start(dir, "n1", good)
	require.NoError(t, err)
	c.register(t, back)
	_, err = start(dir, "n1", "")
	require.NoError(t, err)

	// A server of another cluster is not trusted.
	elsewhere := newCluster(t)
	wrong := elsewhere.serve(t, elsewhere.handler(http.NotFoundHandler()))
	url = wrong.URL
	_, err = start(dir, "n1", "")
	require.ErrorContains(t, err, "does not belong to the cluster that this machine has joined")
	wrong.Close()
	var unreachable *unreachableError
	_, err = start(dir, "n1", good)
	require.ErrorAs(t, err, &unreachable)
}

// TestRenewalNeedsTheCertificate checks that a renewal needs a certificate issued by the server for the node.
func TestRenewalNeedsTheCertificate(t *testing.T) {
	c := newCluster(t)
	server := c.serve(t, c.handler(http.NotFoundHandler()))
	i := c.machine(t, server.URL, t.TempDir(), "n1")
	require.NoError(t, i.join(t.Context()))
	c.register(t, i)
	good := i.present.Load().credentials
	with := func(a *pki.Authority, leaf pki.Leaf) error {
		cert, err := a.Sign(leaf, i.key.Public())
		require.NoError(t, err)
		bad := good
		bad.client, err = pki.Pair(cert, i.key)
		require.NoError(t, err)
		return i.renew(t.Context(), bad)
	}
	self, err := pki.Load(t.TempDir())
	require.NoError(t, err)
	node := pki.Leaf{Name: nodeUser("n1"), Groups: []string{nodesGroup}}
	require.ErrorContains(t, with(self.Client, node), "certificate", "made by itself")
	require.ErrorContains(t, with(c.keys.Node, node), "certificate", "what nodes serve with")
	require.ErrorContains(t, with(c.keys.Client, pki.Leaf{Name: nodeUser("n1")}), "not a node's")
	require.ErrorContains(t, with(c.keys.Client, pki.Leaf{Name: nodeUser("n2"), Groups: []string{nodesGroup}}),
		"has joined as n2")
	none := good
	none.client = tls.Certificate{}
	require.ErrorContains(t, i.renew(t.Context(), none), "needs the certificate")
	require.NoError(t, i.renew(t.Context(), good))
}

// TestWrongTokensBlockNoRenewal checks that a pod, whose packets have its node's address, cannot keep the node from
// renewing its certificates.
func TestWrongTokensBlockNoRenewal(t *testing.T) {
	c := newCluster(t)
	server := c.serve(t, c.handler(http.NotFoundHandler()))
	i := c.machine(t, server.URL, t.TempDir(), "n1")
	require.NoError(t, i.join(t.Context()))
	c.register(t, i)
	good := i.present.Load().credentials
	none := good
	none.client = tls.Certificate{}
	for range 2 * mostRefused {
		_, err := i.exchange(t.Context(), &tls.Config{RootCAs: good.trusted}, http.MethodPost, joinPath, "guess", nil)
		require.Error(t, err)
		require.Error(t, i.renew(t.Context(), none))
	}
	require.ErrorContains(t, i.join(t.Context()), "too many attempts")
	require.NoError(t, i.renew(t.Context(), good))
}

// TestAddresses checks that a machine gets a client certificate for the address that it joined with, and renews it
// only for an address from which it connects or that its Node has.
func TestAddresses(t *testing.T) {
	c := newCluster(t)
	server := c.serve(t, c.handler(http.NotFoundHandler()))
	i := c.machine(t, server.URL, t.TempDir(), "n1")
	require.NoError(t, i.join(t.Context()))
	c.register(t, i)
	has := func(want string) {
		t.Helper()
		require.Equal(t, want, i.present.Load().client.Leaf.IPAddresses[0].String())
	}
	renews := func(ip string) error {
		i.nodeIP = ip
		return i.renew(t.Context(), i.present.Load().credentials)
	}
	has("192.0.2.7")
	require.NoError(t, renews("192.0.2.7"))
	err := renews("192.0.2.8")
	require.ErrorContains(t, err, "neither joined with the address 192.0.2.8 nor connects from it")
	require.True(t, shutOut(err))
	require.NoError(t, renews("127.0.0.1"), "from where it connects")
	has("127.0.0.1")
	require.Error(t, renews("192.0.2.7"), "it has moved")
	c.nodes["n1"].Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.9"}}
	require.NoError(t, renews("192.0.2.9"), "an administrator or an earlier version wrote it")
	has("192.0.2.9")
}

func TestOwnPorts(t *testing.T) {
	c := config.Config{Server: config.Server{Listen: ":6443"}}
	c.AgentListen, c.RESTAddress = ":10250", "0.0.0.0:8070"
	require.Equal(t, []uint16{dns.Port, 6443, 10250, 8070}, ownPorts(c))
	c.RESTAddress = "127.0.0.1:8070"
	require.NotContains(t, ownPorts(c), uint16(8070))
}

func TestNodeOfAnotherMachine(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	own, remote := &membership{machine: "a"}, &membership{machine: "a", remote: []run.Component{&identity{}}}
	require.NoError(t, own.check(node), "nobody's yet")
	node.Annotations = map[string]string{machineAnnotation: "a"}
	require.NoError(t, own.check(node))
	node.Annotations = map[string]string{machineAnnotation: "b"}
	require.ErrorContains(t, own.check(node), "coracle server --no-node",
		"a server that does not start cannot be asked to delete the Node")
	require.EqualError(t, remote.check(node), ownedByOther("n1").Error())
}
