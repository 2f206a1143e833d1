package upstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// The names of the programs.
const (
	Etcd       = "etcd"
	APIServer  = "kube-apiserver"
	Controller = "kube-controller-manager"
	Scheduler  = "kube-scheduler"
)

// Config says what runs, and where.
type Config struct {
	// Programs is the folder with the programs: dist/upstream.
	Programs string
	// Dir is a folder for keys, certificates, kubeconfigs and logs.
	Dir string
	// Keys is a folder with a cluster's keys, laid out as DATA/pki of a Coracle server; missing keys are generated.
	// Default Dir/pki.
	Keys string
	// Data is etcd's data directory. Default Dir/etcd.
	Data string
	// EtcdURL is the URL of a running etcd; if it is set, Start starts none.
	EtcdURL string
	// Address is the address of this machine at which the API server listens. Default 127.0.0.1.
	Address string
	// Port is the API server's. Default 7443, so that Coracle's can run beside it. EtcdPort is etcd's port for
	// clients, and the next port is for peers. Default 2379.
	Port, EtcdPort int
	// ServiceCIDR and ClusterCIDR are the address ranges of services and pods. Default Coracle's.
	ServiceCIDR, ClusterCIDR string
	// NoAPIServer starts only etcd. Controllers and Scheduler also start those programs, without leader election.
	NoAPIServer, Controllers, Scheduler bool
	// Bare gives the API server only flags that Coracle's link kube-apiserver also has, and no service account
	// admission, so that Programs may contain that link.
	Bare bool
	// Flags are more flags for a program, by its name. They follow the flags of Start; the last of equal flags counts.
	Flags map[string][]string
	// Command makes a command on this machine. Default exec.CommandContext.
	Command func(ctx context.Context, name string, args ...string) *exec.Cmd
	// Dial connects to an address from this machine. Default net.Dialer.DialContext.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Cluster is the running programs.
type Cluster struct {
	// Kubeconfig is the path of a kubeconfig of an administrator (system:masters).
	Kubeconfig string
	// EtcdURL is etcd's URL for clients: without TLS, on the loopback address.
	EtcdURL string

	config  Config
	running []*process
}

// Patience is how long Start waits for the API server to be ready.
const Patience = 3 * time.Minute

// interval is the time between two checks whether the API server is ready. No event reports it.
const interval = 20 * time.Millisecond

// answerTime is how long the answer to one check may take.
const answerTime = 10 * time.Second

// Start starts the programs and returns when the API server is ready, with its roles and default namespaces. The caller
// must call Stop.
func Start(ctx context.Context, c Config) (*Cluster, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	files, err := c.writeKeys()
	if err != nil {
		return nil, err
	}
	s := &Cluster{Kubeconfig: files.kubeconfig("admin"), EtcdURL: c.EtcdURL, config: c}
	if err := s.start(ctx, files); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (c *Config) complete() error {
	if c.Programs == "" || c.Dir == "" {
		return errors.New("upstream: Programs and Dir are required")
	}
	c.Keys = cmp.Or(c.Keys, filepath.Join(c.Dir, "pki"))
	c.Data = cmp.Or(c.Data, filepath.Join(c.Dir, "etcd"))
	c.Address = cmp.Or(c.Address, "127.0.0.1")
	c.Port, c.EtcdPort = cmp.Or(c.Port, 7443), cmp.Or(c.EtcdPort, 2379)
	c.ServiceCIDR, c.ClusterCIDR = cmp.Or(c.ServiceCIDR, "10.43.0.0/16"), cmp.Or(c.ClusterCIDR, "10.42.0.0/16")
	if c.Command == nil {
		c.Command = exec.CommandContext
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{}).DialContext
	}
	return os.MkdirAll(c.Dir, 0o700)
}

func (s *Cluster) start(ctx context.Context, f files) error {
	c := &s.config
	if c.EtcdURL == "" {
		s.EtcdURL = "http://127.0.0.1:" + strconv.Itoa(c.EtcdPort)
		if err := s.run(Etcd, etcdFlags(c, s.EtcdURL)); err != nil {
			return err
		}
	}
	if c.NoAPIServer {
		return nil
	}
	if err := s.run(APIServer, apiServerFlags(c, f, s.EtcdURL)); err != nil {
		return err
	}
	if err := s.ready(ctx); err != nil {
		return err
	}
	if c.Controllers {
		if err := s.run(Controller, controllerFlags(c, f)); err != nil {
			return err
		}
	}
	if c.Scheduler {
		return s.run(Scheduler, schedulerFlags(f))
	}
	return nil
}

// run starts a program. The end of Start's context does not end it; Stop does.
func (s *Cluster) run(name string, flags []string) error {
	p, err := begin(s.config, name, append(flags, s.config.Flags[name]...))
	if err == nil {
		s.running = append(s.running, p)
	}
	return err
}

// ready waits until the API server is ready.
func (s *Cluster) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	client, err := rest.HTTPClientFor(s.REST())
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	last := s.running[len(s.running)-1]
	for {
		if isReady(ctx, client, s.REST().Host) {
			return nil
		}
		for _, p := range s.running {
			if p.hasEnded() {
				return p.failure()
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w; the end of its log:\n%s", last.name, ctx.Err(), last.tail())
		case <-tick.C:
		}
	}
}

func isReady(ctx context.Context, client *http.Client, host string) bool {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, host+"/readyz", nil)
	if err != nil {
		return false
	}
	answer, err := client.Do(request)
	if err != nil {
		return false
	}
	_ = answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

// REST returns the configuration of an administrator's client. It has no rate limit; the caller may change it.
func (s *Cluster) REST() *rest.Config {
	config, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig)
	if err != nil {
		panic(fmt.Sprintf("upstream: %v", err)) // Start wrote the file
	}
	config.QPS = -1
	config.Dial = s.config.Dial
	return config
}

// KubeconfigOf returns the path of a kubeconfig with the rights of one control plane program.
func (s *Cluster) KubeconfigOf(program string) string {
	return files{dir: s.config.Dir}.kubeconfig(program)
}

// PIDs returns the process IDs by program.
func (s *Cluster) PIDs() map[string]int {
	pids := map[string]int{}
	for _, p := range s.running {
		pids[p.name] = p.cmd.Process.Pid
	}
	return pids
}

// Stop ends the programs in reverse order of their start, and returns when they have ended.
func (s *Cluster) Stop() error {
	var errs []error
	for _, p := range slices.Backward(s.running) {
		errs = append(errs, p.stop())
	}
	s.running = nil
	return errors.Join(errs...)
}

// Kill ends the programs with SIGKILL.
func (s *Cluster) Kill() {
	for _, p := range slices.Backward(s.running) {
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
	s.running = nil
}
