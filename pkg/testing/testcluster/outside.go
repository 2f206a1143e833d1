package testcluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client"
)

// outside is the program coracle in a network namespace, and a listener on this namespace's loopback interface that
// forwards to its API.
type outside struct {
	config     Config
	program    string
	dir, netns string
	listener   net.Listener
}

const (
	patience = 90 * time.Second
	// nodeIP is the node's address in its namespace (RFC 5737), and gateway its default route, where no machine
	// answers.
	nodeIP, gateway = "198.51.100.2", "198.51.100.1"
	apiPort         = "6443"
)

func newOutside(c Config, dir string) (*outside, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("testcluster: Pods needs root, for network namespaces and containers; API and Reconcilers " +
			"do not")
	}
	program := cmp.Or(c.Coracle, os.Getenv("CORACLE"))
	program = cmp.Or(program, "coracle")
	program, err := exec.LookPath(program)
	if err != nil {
		return nil, fmt.Errorf("testcluster: Pods runs the program coracle: name it in Config.Coracle or the variable "+
			"CORACLE: %w", err)
	}
	if c.Options != nil {
		return nil, errors.New("testcluster: Options are for API and Reconcilers")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	// The base name of the temporary directory is unique and valid as a namespace name.
	return &outside{config: c, program: program, dir: dir, netns: filepath.Base(dir), listener: listener}, nil
}

func (o *outside) Kubeconfig() string { return filepath.Join(o.dir, "kubeconfig") }

func (o *outside) As(user string, groups ...string) (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig())
	if err != nil {
		return nil, err
	}
	cfg.QPS, cfg.Impersonate = -1, rest.ImpersonationConfig{UserName: user, Groups: groups}
	return cfg, nil
}

func (o *outside) Client() ctrl.WithWatch {
	cfg, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig())
	if err == nil {
		cfg.QPS = -1
		var c ctrl.WithWatch
		if c, err = ctrl.NewWithWatch(cfg, ctrl.Options{Scheme: client.Scheme()}); err == nil {
			return c
		}
	}
	panic(fmt.Sprintf("testcluster: %v", err)) // this package wrote the file, which exists until Stop
}

func (o *outside) run(ctx context.Context, ready func()) (err error) {
	defer o.listener.Close()
	if err := o.network(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, system("ip", "netns", "del", o.netns)) }()
	defer func() { err = errors.Join(err, o.coracle("delete")) }()
	if err := o.coracle("start", "--merge-kubeconfig=false", "--node-name", "localhost", "--node-ip", nodeIP,
		"--tls-names", "127.0.0.1",
		"--eviction-hard", "nodefs.available<64Mi,imagefs.available<64Mi,nodefs.inodesFree<0%,imagefs.inodesFree<0%",
		"--image-gc-high-threshold", "100"); err != nil {
		return err
	}
	if len(o.config.Images) > 0 {
		if err := o.coracle(append([]string{"image", "load"}, o.config.Images...)...); err != nil {
			return err
		}
	}
	if err := o.writeKubeconfig(); err != nil {
		return err
	}
	forwarded := make(chan struct{})
	go func() {
		defer close(forwarded)
		forward(ctx, o.listener, "/run/netns/"+o.netns, net.JoinHostPort("127.0.0.1", apiPort))
	}()
	ready()
	<-ctx.Done()
	_ = o.listener.Close()
	<-forwarded
	return nil
}

// network creates a namespace with one address and a default route to a missing machine.
func (o *outside) network() error {
	if err := system("ip", "netns", "add", o.netns); err != nil {
		return err
	}
	for _, line := range []string{
		"link set lo up", "link add eth0 type veth peer name wire0", "link set wire0 up", "link set eth0 up",
		"addr add " + nodeIP + "/24 dev eth0",
		"route add default via " + gateway + " dev eth0",
	} {
		if err := system("ip", append([]string{"-n", o.netns}, strings.Fields(line)...)...); err != nil {
			return errors.Join(err, system("ip", "netns", "del", o.netns))
		}
	}
	return nil
}

// writeKubeconfig writes the administrator's kubeconfig with the address of the listener.
func (o *outside) writeKubeconfig() error {
	c, err := clientcmd.LoadFromFile(filepath.Join(o.dir, "data", "kubeconfig"))
	if err != nil {
		return err
	}
	for _, cluster := range c.Clusters {
		cluster.Server = "https://" + o.listener.Addr().String()
	}
	return clientcmd.WriteToFile(*c, o.Kubeconfig())
}

// coracle runs a command of the program.
func (o *outside) coracle(args ...string) error {
	// `ip netns exec` would mount a new /sys, without cgroups.
	c := append([]string{"--net=/run/netns/" + o.netns, "--", o.program}, args...)
	return system("nsenter",
		append(c, "--data-dir", filepath.Join(o.dir, "data"), "--run-dir", filepath.Join(o.dir, "run"))...)
}

func system(name string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := exec.CommandContext(ctx, name, args...)
	c.WaitDelay = 5 * time.Second
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}
