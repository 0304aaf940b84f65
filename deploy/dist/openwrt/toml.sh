# Converts /etc/config/roadweave to a client.toml; sourced by /etc/init.d/roadweave, after OpenWrt's
# /lib/functions.sh.
#
# Values are written as strings, numbers or booleans of TOML, depending on the field, and are never
# executed: there is no eval here. Values that cannot be written are refused; the program checks the
# rest.

# Lists and options are separate: config_get sees no list, and config_list_foreach no option.
toml_wrong="" toml_type="" toml_options="" toml_lists=""

# What UCI has of a client.toml: OPTION:KIND:FIELD for each type of section. The kind `list` is that
# of UCI. Options without a field are read by the init script and by toml_client.
toml_client_fields="enabled:text: config:text: private_key_file:text: state_directory:text: \
uplink_inside:list: name:text:name dns:list:dns packet_marks:text:packet_marks \
uplink_include:list:uplinks.include uplink_exclude:list:uplinks.exclude \
uplink_forward:truth:uplinks.forward uplink_local:local:uplinks.local \
uplink_portal_probe:text:uplinks.portal_probe into_tunnel:list:routes.into_tunnel \
exclude:list:routes.exclude exclude_mark:text:routes.exclude_mark \
masquerade:truth:routes.masquerade before_join:text:routes.before_join \
kill_switch:truth:routes.kill_switch tun_name:text:tun.name mtu_bytes:number:tun.mtu_bytes \
memory_mb:number:limits.client_memory_mb"
toml_server_fields="address:list:addresses public_key:text:public_key name:text:name site:text:site"
toml_policy_fields="name:text:name device:text:device iccid:text:iccid priority:text:priority \
weight:number:weight rate_limit_kbps:number:rate_limit_kbps technology:text:technology \
monthly_cap_mb:number:metered.monthly_cap_mb billing_day:number:metered.billing_day \
daily_cap_mb:number:metered.daily_cap_mb redundancy_percent:number:metered.redundancy_percent"

# Called for every section, option and list that config_load reads. Unknown names, and those of the
# other kind, would be ignored, so they are refused.
config_cb() {
	toml_type=${1:-} toml_options="" toml_lists=""
	case $toml_type in
	"") return ;;
	client) set -- $toml_client_fields ;;
	server) set -- $toml_server_fields ;;
	policy) set -- $toml_policy_fields ;;
	*)
		toml_refuse "no section is called $toml_type; there are client, server and policy; $toml_way"
		return
		;;
	esac
	for toml_field in "$@"; do
		case $toml_field in
		*:list:*) toml_lists="${toml_lists:+$toml_lists }${toml_field%%:*}" ;;
		*) toml_options="${toml_options:+$toml_options }${toml_field%%:*}" ;;
		esac
	done
}

# UCI has only a part of the fields of a client.toml.
toml_way="fields that only a file in TOML has (lanes, streams, transport, routes.accept, \
uplinks.order, metered.insurance and more) go there: option config FILE"

# Only the first error is reported: names and kinds first, then values.
toml_refuse() {
	toml_wrong=${toml_wrong:-$1}
}
toml_fail() {
	toml_failed=${toml_failed:-$1}
}

# toml_has NAMES NAME
toml_has() {
	case " $1 " in
	*" $2 "*) ;;
	*) return 1 ;;
	esac
}

option_cb() {
	[ -n "$toml_options" ] || return 0
	if toml_has "$toml_lists" "$1"; then
		toml_refuse "$toml_type: $1 is a list: write \`list $1 '$2'\`, a line for each"
	elif ! toml_has "$toml_options" "$1"; then
		toml_refuse_name "$1"
	elif [ -z "$2" ]; then
		toml_refuse "$toml_type: $1 is empty: give it a value, or leave the line out"
	fi
}

list_cb() {
	[ -n "$toml_options" ] || return 0
	if toml_has "$toml_options" "$1"; then
		toml_refuse "$toml_type: $1 is not a list: write \`option $1 '$2'\`"
	elif ! toml_has "$toml_lists" "$1"; then
		toml_refuse_name "$1"
	elif [ -z "$2" ]; then
		toml_refuse "$toml_type: an item of $1 is empty: give it a value, or leave the line out"
	fi
}

toml_refuse_name() {
	toml_refuse "$toml_type: no option or list is called $1; there are the options $toml_options\
${toml_lists:+, and the lists $toml_lists}; $toml_way"
}

# toml_check TEXT: refuses characters that a string cannot have.
toml_check() {
	case $1 in
	*[[:cntrl:]]*) toml_fail "a value has a control character" ;;
	esac
}

# toml_string TEXT: as a string of TOML.
toml_string() {
	printf '"%s"' "$(printf '%s' "$1" | sed 's/\\/\\\\/g; s/"/\\"/g')"
}

# toml_put KIND FIELD VALUE [OPTION]: a line, unless there is no value. Errors name the option.
toml_put() {
	[ -n "$3" ] || return 0
	case $1 in
	text) toml_check "$3" && printf '%s = %s\n' "$2" "$(toml_string "$3")" ;;
	number)
		case $3 in
		*[!0-9]*) toml_fail "${4:-$2}: not a number" ;;
		*) printf '%s = %s\n' "$2" "$3" ;;
		esac
		;;
	truth | local)
		case $1$3 in
		localgateway) printf '%s = "gateway"\n' "$2" && return ;;
		esac
		case $3 in
		1 | yes | on | true | enabled) printf '%s = true\n' "$2" ;;
		0 | no | off | false | disabled) printf '%s = false\n' "$2" ;;
		*) toml_fail "${4:-$2}: neither 0 nor 1" ;;
		esac
		;;
	esac
}

toml_item() {
	toml_check "$1"
	toml_items="$toml_items$(toml_string "$1"), "
}

# toml_list SECTION LIST FIELD
toml_list() {
	toml_items=""
	config_list_foreach "$1" "$2" toml_item
	[ -z "$toml_items" ] || printf '%s = [%s]\n' "$3" "${toml_items%, }"
}

# toml_write SECTION OPTION:KIND:FIELD...
toml_write() {
	local section=$1 option kind value
	shift
	for toml_field in "$@"; do
		option=${toml_field%%:*} toml_field=${toml_field#*:}
		kind=${toml_field%%:*} toml_field=${toml_field#*:}
		[ -n "$toml_field" ] || continue
		if [ "$kind" = list ]; then
			toml_list "$section" "$option" "$toml_field"
		else
			config_get value "$section" "$option"
			toml_put "$kind" "$toml_field" "$value" "$option"
		fi
	done
}

toml_server() {
	toml_count=$((toml_count + 1))
	if [ "$toml_count" = 1 ]; then echo "[server]"; else echo "[[proxies]]"; fi
	toml_write "$1" $toml_server_fields
}

# Whether a server is named; without one, the fleet assigns servers.
toml_names_server() {
	local key
	toml_items=""
	config_list_foreach "$1" address toml_item
	config_get key "$1" public_key
	if [ -n "$toml_items" ]; then
		toml_server "$1"
	elif [ -n "$key" ]; then
		toml_fail "server: public_key needs \`list address\`"
	fi
}

toml_policy() {
	echo "[[uplinks.policies]]"
	toml_write "$1" $toml_policy_fields
}

# toml_inside SECTION: the interfaces behind the box; those of the firewall's zones that lead
# nowhere else, unless they are named.
toml_inside() {
	local at=0 zone network device
	toml_list "$1" uplink_inside uplinks.inside
	[ -z "$toml_items" ] || return 0
	while [ "$at" -lt 64 ] && zone=$(uci -q get "firewall.@zone[$at].name"); do
		# Zones with source NAT lead to other networks.
		if [ "$zone" != wan ] && [ "$(uci -q get "firewall.@zone[$at].masq")" != 1 ]; then
			for network in $(uci -q get "firewall.@zone[$at].network"); do
				device=$(uci -q get "network.$network.device") ||
					device=$(ubus call "network.interface.$network" status 2>/dev/null |
						jsonfilter -q -e '@.l3_device' 2>/dev/null)
				case $device in
				"" | @*) ;;
				*) toml_item "$device" ;;
				esac
			done
		fi
		at=$((at + 1))
	done
	[ -z "$toml_items" ] || printf 'uplinks.inside = [%s]\n' "${toml_items%, }"
}

# The last line; without it a file is incomplete.
toml_end="# written by /etc/init.d/roadweave from /etc/config/roadweave"

# toml_client SECTION KEY_FILE: the whole file on standard output. Fails, with the reason in
# toml_failed, when a value cannot be written.
toml_client() {
	local key=""
	toml_failed="$toml_wrong" toml_count=0
	# Read by the shell itself: no other process has it among its arguments.
	[ ! -f "$2" ] || IFS= read -r key <"$2" || [ -n "$key" ]
	case $key in
	*[!A-Za-z0-9+/=]*) toml_fail "$2: not a private key" ;;
	?*) printf 'private_key = "%s"\n' "$key" ;;
	esac
	# The program's default is in memory here: counts of caps and the key of a fleet would be lost.
	config_get toml_state "$1" state_directory
	toml_put text state_directory "${toml_state:-/etc/roadweave/state}"
	toml_write "$1" $toml_client_fields
	toml_inside "$1"
	config_foreach toml_policy policy
	config_foreach toml_names_server server
	echo "$toml_end"
	[ -z "$toml_failed" ]
}
