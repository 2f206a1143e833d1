package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/server"
	"github.com/coracle-dev/coracle/pkg/state/store"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// Names of upstream's programs that the binary acts as when a link with the name is run, as for kubectl.
const (
	etcdName      = "etcd"
	kubeAPIServer = "kube-apiserver"
)

// etcdCommand runs upstream's etcd, which parses its flags itself.
func etcdCommand() *cobra.Command {
	return &cobra.Command{
		Use: etcdName, DisableFlagParsing: true, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			return store.RunProgram(cmd.Context(), args, cmd.OutOrStdout())
		},
	}
}

// kubeAPIServerCommand runs only the API server, on an external etcd. It accepts the flags of upstream's
// kube-apiserver that Coracle honours and rejects others.
func kubeAPIServerCommand() *cobra.Command {
	k := &server.KubeAPIServer{Config: config.Default()}
	level := 0
	cmd := &cobra.Command{
		Use: kubeAPIServer, Short: "The Kubernetes API server of Coracle, over an etcd elsewhere, with upstream's flags",
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if level >= 4 {
				k.Config.LogLevel = "debug"
			}
			log, err := server.NewLog(k.Config.LogLevel, k.Config.LogFormat)
			if err != nil {
				return err
			}
			k.Flags = map[string]string{}
			cmd.Flags().VisitAll(func(f *pflag.Flag) { k.Flags[f.Name] = f.Value.String() })
			return k.Run(cmd.Context(), log)
		},
	}
	cmd.CompletionOptions.DisableDefaultCmd = true
	f := cmd.Flags()
	f.SortFlags = true
	f.IntVarP(&level, "v", "v", 0, "log level; 4 and more mean debug")
	servingOf(f, k)
	etcdOf(f, k)
	accessOf(f, k)
	k.Config.UpstreamOptions(f)
	return cmd
}

func servingOf(f *pflag.FlagSet, k *server.KubeAPIServer) {
	f.IPVar(&k.BindAddress, "bind-address", net.IPv4zero, "address to listen on")
	f.IPVar(&k.AdvertiseAddress, "advertise-address", nil,
		"address of the API for members of the cluster (default the one it listens on)")
	f.IntVar(&k.SecurePort, "secure-port", 6443, "port of HTTPS")
	f.StringVar(&k.CertDir, "cert-dir", "/var/run/kubernetes",
		"directory of the serving certificate, apiserver.crt and .key, unless --tls-cert-file is given; made if missing")
	f.StringVar(&k.TLSCertFile, "tls-cert-file", "", "file with the serving certificate")
	f.StringVar(&k.TLSKeyFile, "tls-private-key-file", "", "file with the key of --tls-cert-file")
	f.StringVar(&k.Config.ServiceCIDR, "service-cluster-ip-range", "10.0.0.0/24", "addresses of services")
	f.BoolVar(&k.Config.AllowPrivileged, "allow-privileged", false, "allow privileged containers")
}

func etcdOf(f *pflag.FlagSet, k *server.KubeAPIServer) {
	f.StringSliceVar(&k.EtcdServers, "etcd-servers", nil, "URLs of etcd (scheme://ip:port), comma separated")
	f.StringVar(&k.EtcdPrefix, "etcd-prefix", "/registry", "prefix of all keys in etcd; only /registry is supported")
	f.StringVar(&k.EtcdCAFile, "etcd-cafile", "", "file with the authority of etcd's certificates")
	f.StringVar(&k.EtcdCertFile, "etcd-certfile", "", "file with the client certificate for etcd")
	f.StringVar(&k.EtcdKeyFile, "etcd-keyfile", "", "file with the key of --etcd-certfile")
	f.StringVar(&k.StorageBackend, "storage-backend", "", "etcd3")
}

func accessOf(f *pflag.FlagSet, k *server.KubeAPIServer) {
	f.StringVar(&k.ClientCAFile, "client-ca-file", "", "file with the authorities of client certificates")
	f.StringVar(&k.TokenAuthFile, "token-auth-file", "", "file with tokens, users and groups, as CSV")
	f.BoolVar(&k.AnonymousAuth, "anonymous-auth", true, "serve requests without credentials as system:anonymous")
	f.StringSliceVar(&k.AuthorizationModes, "authorization-mode", nil,
		"RBAC, Node, AlwaysAllow (default AlwaysAllow, unless --authorization-config is given)")
}

// envtestCommand creates the directory for KUBEBUILDER_ASSETS.
func envtestCommand() *cobra.Command {
	return &cobra.Command{
		Use: "envtest DIRECTORY", Short: "Make a folder for controller-runtime's envtest",
		Long: `Make a folder with the programs that controller-runtime's envtest starts: links named
kube-apiserver, etcd and kubectl to this binary. A suite runs with them unchanged:

  coracle envtest /tmp/assets
  KUBEBUILDER_ASSETS=/tmp/assets go test ./...`,
		Args: command.Exactly(1, "DIRECTORY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			dir, err := filepath.Abs(args[0])
			if err != nil {
				return err
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			for _, name := range []string{kubeAPIServer, etcdName, "kubectl"} {
				if err := link(self, filepath.Join(dir, name)); err != nil {
					return err
				}
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "export KUBEBUILDER_ASSETS=%s\n", dir)
			return err
		},
	}
}

// link creates a symbolic link. It replaces an existing link but no other file.
func link(target, path string) error {
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&os.ModeSymlink == 0 {
			return fmt.Errorf("%s is there and no link: remove it, or choose another directory", path)
		}
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return os.Symlink(target, path)
}
